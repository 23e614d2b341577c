// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

// someSizes are sets of Services with classes, timeouts and lengths.
var someSizes = []string{"many4_2", "class4_4", "outsideclass4_4", "npmany4_2", "npoutsidemany4_8", "sticky4_10800", "npsticky4_5", "allowed4_24", "allowed4_32", "class6_2", "npclass6_4", "allowed6_64"}

// makeServices makes the table of Services with these sets.
func makeServices(t *testing.T, c *Conn, sets ...string) (ServiceLayout, ServicesRevision) {
	t.Helper()
	l, err := LayoutOfServices(sets...)
	if err != nil {
		t.Fatal(err)
	}
	first := ServicesRevision{}.Next()
	c.Queue(&ServicesWork{Next: first, Grow: l})
	commit(t, c)
	return l, first
}

func mended(t *testing.T, c *Conn, l ServiceLayout) bool {
	t.Helper()
	have, err := c.ReadServices()
	if err != nil || !have.Ours {
		t.Fatalf("%+v, %v", have, err)
	}
	m, err := c.MendServices(have, l)
	if err != nil {
		t.Fatal(err)
	}
	if m != nil {
		t.Logf("differs: %+v", m)
	}
	return m == nil
}

// The table as nft lists it. The kernel has what we want, also after nft has loaded its own output.
func TestServicesTable(t *testing.T) {
	nettest.Need(t, nettest.Program("nft"))
	c := open(t)
	l, _ := makeServices(t, c, someSizes...)
	b := NewServicesBulk()
	for set, key := range map[string][]byte{"many4_4": append(AddrProtoPort(netip.MustParseAddr("10.96.0.1"), 6, 80), native(3)...), "npmany4_2": append(ProtoPort(6, 30080), native(1)...)} {
		b.Add(set).Element(key, AddrPort(netip.MustParseAddrPort("10.1.0.5:8080")), false)
	}
	b.Add("pods4").Element(Addr(netip.MustParseAddr("10.1.0.0")), nil, false)
	b.Add("pods4").Element(Addr(netip.MustParseAddr("10.1.1.0")), nil, true)
	was, err := c.ReadServicesRevision()
	if err != nil {
		t.Fatal(err)
	}
	c.Queue(&ServicesWork{Was: was, Next: was.Next(), Grow: l, Have: l, Elements: b})
	commit(t, c)
	if !mended(t, c, l) {
		t.Error("differs right after it was made")
	}
	text := listServices(t)
	goldenOfNFT(t, "services.golden", text)
	saved := filepath.Join(t.TempDir(), "saved")
	if err := os.WriteFile(saved, []byte("flush ruleset\n"+text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("nft", "-f", saved).CombinedOutput(); err != nil {
		t.Fatalf("load: %v, %s", err, out)
	}
	if again := listServices(t); again != text {
		t.Errorf("loaded again, it is\n%s", again)
	}
	if !mended(t, c, l) {
		t.Error("differs after nft has loaded it")
	}
}

func listServices(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("nft", "list", "table", "inet", ServicesTable).CombinedOutput()
	if err != nil {
		t.Fatalf("%v, %s", err, out)
	}
	return string(out)
}

// The layout grows and shrinks without losing elements, and a transaction for another revision is refused.
func TestServicesLayout(t *testing.T) {
	nettest.Need(t, nettest.Program("nft"))
	c := open(t)
	small, was := makeServices(t, c, "many4_2")
	large, err := small.With("class4_8", "sticky6_7")
	if err != nil {
		t.Fatal(err)
	}
	b := NewServicesBulk()
	b.Add("vips4").Element(Addr(netip.MustParseAddr("10.96.0.1")), nil, false)
	b.Add("class4_8").Element(AddrProtoPort(netip.MustParseAddr("10.96.0.1"), 6, 80), nil, false)
	next := was.Next()
	c.Queue(&ServicesWork{Was: was, Next: next, Have: small, Grow: large, Elements: b})
	commit(t, c)
	if !mended(t, c, large) {
		t.Error("grown, it differs")
	}
	if text := listServices(t); !strings.Contains(text, "update @affinity6 { ct original ip6 saddr . ct original ip6 daddr . meta l4proto . ct original proto-dst timeout 7s : ct reply ip6 saddr . ct reply proto-src }") {
		t.Errorf("nft lists\n%s", text)
	}
	c.Queue(&ServicesWork{Was: was, Next: next.Next(), Have: large, Grow: large})
	if err := c.Commit(t.Context()); err == nil || !strings.Contains(err.Error(), "changed by another program") {
		t.Errorf("with an old revision: %v", err)
	}
	have, err := c.ReadServices()
	if err != nil {
		t.Fatal(err)
	}
	m, err := c.MendServices(have, small)
	if err != nil || m == nil {
		t.Fatalf("nothing to mend: %v", err)
	}
	c.Queue(&ServicesWork{Was: next, Next: next.Next(), Mend: m})
	commit(t, c)
	if !mended(t, c, small) {
		t.Error("mended, it differs")
	}
	n := 0
	if err := c.EachElement("vips4", func(key, data []byte, end bool) { n++ }); err != nil || n != 1 {
		t.Errorf("vips4 has %d elements: %v", n, err)
	}
	c.Queue(RemoveServices())
	commit(t, c)
	if have, err := c.ReadServices(); err != nil || have.Exists {
		t.Errorf("removed: %+v, %v", have, err)
	}
	if slices.Contains(ServiceSets(), "many4_2") {
		t.Error("a class is in every table")
	}
}

// Each endpoint of a class gets nearly its share, whatever part of the class has endpoints.
func TestShares(t *testing.T) {
	for class := 2; class <= 4096; class *= 2 {
		l, err := LayoutOfServices("many4_" + strconv.Itoa(class))
		if err != nil {
			t.Fatal(err)
		}
		table, err := l.Table()
		if err != nil {
			t.Fatal(err)
		}
		for n := class/2 + 1; n <= class; n += max(1, class/16) {
			last, left := 0.0, 1.0 // what the last endpoint gets, and how many packets no rule has sent yet
			for _, r := range table.Rules["draw4_"+strconv.Itoa(class)] {
				among := drawnAmong(t, r)
				if n <= among {
					last += left / float64(among)
				}
				left -= left * float64(min(n, among)) / float64(among)
			}
			if share := last * float64(n); share < 0.984 || left > 1e-9 {
				t.Errorf("the last of %d endpoints gets %.4f of its share, and %.4f of the packets go nowhere", n, share, left)
			}
		}
	}
}

func drawnAmong(t *testing.T, r Rule) int {
	t.Helper()
	for _, e := range r.Exprs {
		if e.Name == "numgen" {
			return int(e.Number(unix.NFTA_NG_MODULUS))
		}
	}
	t.Fatalf("draws nothing: %s", r)
	return 0
}
