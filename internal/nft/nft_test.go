// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"flag"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/rogpeppe/go-internal/diff"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

var update = flag.Bool("update", false, "write the goldens")

func TestMain(m *testing.M) { nettest.Main(m) }

// open returns a Conn with an empty ruleset and a run directory of its own.
func open(t testing.TB) *Conn {
	t.Helper()
	c := Open(t.TempDir())
	flush(t, c)
	t.Cleanup(func() {
		flush(t, c)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func flush(t testing.TB, c *Conn) {
	t.Helper()
	if err := c.dial(); err != nil {
		t.Fatal(err)
	}
	lib := library(t)
	lib.FlushRuleset()
	if err := lib.Flush(); err != nil {
		t.Fatal(err)
	}
}

func library(t testing.TB) *nftables.Conn {
	t.Helper()
	lib, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	return lib
}

func commit(t testing.TB, c *Conn) {
	t.Helper()
	if err := c.Commit(context.Background()); err != nil {
		t.Fatal(err)
	}
}

const testOwner = "abcdefghijklmno"

func attachment() []Element {
	com := Comment(testOwner, "pods", "c1", "eth0")
	to4, to6 := netip.MustParseAddrPort("10.1.0.5:80"), netip.MustParseAddrPort("[fd00:1::5]:80")
	lo := netip.MustParseAddr("127.0.0.1")
	return append([]Element{
		Owner(testOwner, com),
		Port(Published{Protocol: 6, Port: 8080, To: to4}, nil, com),
		Port(Published{Protocol: 17, Port: 8080, To: to6}, nil, com),
		Port(Published{Host: lo, Protocol: 132, Port: 8080, To: to4}, nil, com),
		Port(Published{Host: netip.MustParseAddr("2001:db8::1"), Protocol: 6, Port: 443, To: to6}, nil, com),
		SNAT(Published{Protocol: 6, Port: 8080, To: to4}, com),
		SNAT(Published{Protocol: 17, Port: 8080, To: to6}, com),
		MasqAll(to4.Addr(), com),
		MasqAll(to6.Addr(), com),
		Neighbours(netip.MustParsePrefix("10.1.0.5/24"), com),
		Neighbours(netip.MustParsePrefix("10.1.0.5/32"), com),
		Neighbours(netip.MustParsePrefix("fd00:1::5/64"), com),
		Egress(to4.Addr(), netip.MustParseAddr("192.0.2.10"), com),
		Egress(to6.Addr(), netip.MustParseAddr("2001:db8::10"), com),
	}, append(Masqueraded(netip.MustParsePrefix("10.1.0.5/24"), com, netip.MustParsePrefix("10.0.0.0/9")), append(
		Masqueraded(netip.MustParsePrefix("fd00:1::5/64"), com),
		CheckMAC("veth01234567", net.HardwareAddr{2, 0, 0, 0, 0, 1}, com)...)...)...)
}

func network() []Element {
	s4, s6 := netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:1::/64")
	var out []Element
	for _, to := range []string{"10.0.0.0/8", "192.168.7.7/32"} {
		out = append(out, Exempt(s4, netip.MustParsePrefix(to), "pods"))
	}
	out = append(out, Exempt(s6, netip.MustParsePrefix("fd00::/8"), "pods"))
	return append(out, Isolate("cni0", "pods"), SameBridge("cni0", "pods"), Apart("cni1", "pods"), GuardLoopback("cni0", "pods"))
}

// nftTool runs nft; the tests that compare with it need it.
func nftTool(t *testing.T, args ...string) string {
	t.Helper()
	nettest.Need(t, nettest.Program("nft"))
	out, err := exec.Command("nft", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("nft %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// reload checks that nft loads its own listing and prints the same again. From nft 1.1 on, a range of one value becomes the value.
func reload(t *testing.T, c *Conn, listing string) {
	t.Helper()
	saved := filepath.Join(t.TempDir(), "saved.nft")
	if err := os.WriteFile(saved, []byte(listing), 0o600); err != nil {
		t.Fatal(err)
	}
	flush(t, c)
	nftTool(t, "-f", saved)
	if again := nftTool(t, "list", "ruleset"); sorted(again) != sorted(listing) && sorted(again) != sorted(oneValues(listing)) {
		t.Errorf("loaded again with nft -f it differs:\n%s", diff.Diff("before", []byte(listing), "after", []byte(again)))
	}
}

// oneValues replaces each range of one value, such as 22-22, by the value.
func oneValues(listing string) string {
	return regexp.MustCompile(`\b[0-9.]+-[0-9.]+\b`).ReplaceAllStringFunc(listing, func(r string) string {
		if from, to, _ := strings.Cut(r, "-"); from == to {
			return from
		}
		return r
	})
}

// The table matches the golden file as nft prints it, also after nft has loaded its own listing.
func TestGolden(t *testing.T) {
	nettest.Need(t, nettest.BackRoutesAtForward()) // of the spans
	c := open(t)
	c.Add(attachment()...)
	c.Add(network()...)
	c.Add(Internal("cni2", "pods")...)
	four, six := netip.MustParsePrefix("10.200.0.0/16"), netip.MustParsePrefix("fd00:200::/48")
	c.Add(Span(four, 24, "pods"), Span(six, 64, "pods"), Divided(four, four, 24, "hosts"), Divided(six, six, 64, "hosts"))
	commit(t, c)
	got := nftTool(t, "list", "ruleset")
	goldenOfNFT(t, "table.golden", got)
	reload(t, c, got)
	// Our program can change the table that nft has loaded.
	c.Add(attachment()...)
	c.Add(network()...)
	if err := c.try(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.Discard()
	c.Remove(attachment()...)
	c.Remove(network()...)
	commit(t, c)
	for _, e := range append(attachment(), network()...) {
		if left, err := c.List(e.Set); err != nil || len(left) > 0 {
			t.Errorf("after removal %s has %v, %v", e.Set, left, err)
		}
	}
}
