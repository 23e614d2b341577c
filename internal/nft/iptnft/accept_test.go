// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package iptnft

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/nftables"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/reftest"
)

var update = flag.Bool("update", false, "write the goldens")

// reference is the directory of the reference plugins. They are built before the test enters a
// namespace without a network.
const reference = "PATCHBAY_TEST_REFERENCE"

func TestMain(m *testing.M) {
	if _, ok := os.LookupEnv(reference); !ok {
		dir, err := reftest.FindReference()
		if err != nil {
			dir = ""
			fmt.Fprintln(os.Stderr, err)
		}
		if err := os.Setenv(reference, dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	nettest.Main(m)
}

// sh runs shell lines and returns what they print.
func sh(t *testing.T, lines string) string {
	t.Helper()
	for _, tool := range []string{"iptables-nft", "ip6tables-nft", "nft"} {
		nettest.Need(t, nettest.Program(tool))
	}
	cmd := exec.Command("sh", "-ec", lines)
	cmd.Env = append(os.Environ(), "XTABLES_LOCKFILE="+filepath.Join(t.TempDir(), "xtables.lock"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", lines, err, out)
	}
	return string(out)
}

func open(t *testing.T) *nft.Conn {
	t.Helper()
	clear := func() {
		lib, err := nftables.New()
		if err != nil {
			t.Fatal(err)
		}
		lib.FlushRuleset()
		if err := lib.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	clear()
	c := nft.Open(t.TempDir())
	t.Cleanup(func() {
		clear()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func commit(t *testing.T, c *nft.Conn, x ...nft.Extra) {
	t.Helper()
	for _, e := range x {
		c.Queue(e)
	}
	if err := c.Commit(context.Background()); err != nil {
		t.Fatal(err)
	}
}

const dump = "iptables-nft -S; ip6tables-nft -S; iptables-nft -t nat -S | grep -v ^-P || true"

func prefixes(s ...string) (out []Source) {
	for _, p := range s {
		out = append(out, On("", netip.MustParsePrefix(p))...)
	}
	return out
}

// Each case has the state of the node, and what iptables prints after two networks were added.
// After the networks are removed, nothing is left.
func TestAccept(t *testing.T) {
	for name, setup := range map[string]string{
		"nothing":  "true",
		"accepts":  "iptables-nft -A FORWARD -j ACCEPT; ip6tables-nft -A FORWARD -j ACCEPT",
		"policy":   "iptables-nft -P FORWARD DROP; ip6tables-nft -P FORWARD DROP",
		"rule":     "iptables-nft -A FORWARD -j REJECT; ip6tables-nft -A FORWARD -s fd01::/64 -j DROP",
		"operator": "iptables-nft -P FORWARD DROP; iptables-nft -N CNI-ADMIN; iptables-nft -A CNI-ADMIN -s 10.1.2.3 -j DROP",
		"reference": `iptables-nft -P FORWARD DROP; iptables-nft -N CNI-ADMIN; iptables-nft -N CNI-FORWARD
			iptables-nft -A CNI-FORWARD -m comment --comment "CNI firewall plugin admin overrides" -j CNI-ADMIN
			iptables-nft -A CNI-FORWARD -s 10.9.0.4/32 -j ACCEPT
			iptables-nft -I FORWARD -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD`,
		"docker": `iptables-nft -P FORWARD DROP; iptables-nft -N DOCKER-USER
			iptables-nft -A DOCKER-USER -s 192.0.2.0/24 -j DROP; iptables-nft -A DOCKER-USER -j RETURN; iptables-nft -A FORWARD -j DOCKER-USER`,
		"docker28":    "iptables-nft -P FORWARD DROP; iptables-nft -N DOCKER-USER; iptables-nft -A FORWARD -j DOCKER-USER",
		"docker-gone": "iptables-nft -P FORWARD DROP; iptables-nft -N DOCKER-USER",
	} {
		t.Run(name, func(t *testing.T) {
			c := open(t)
			sh(t, setup)
			before := sh(t, dump)
			first, second := prefixes("10.1.0.0/16", "fd00:1::/64"), prefixes("10.2.0.0/17", "10.3.0.1/32")
			commit(t, c, Accept(first, ""), Accept(second, ""))
			after := sh(t, dump)
			golden(t, "accept-"+name, after)
			commit(t, c, Accept(first, ""), Accept(second, ""))
			if again := sh(t, dump); again != after {
				t.Errorf("a second ADD changed it:\n%s", again)
			}
			commit(t, c, Unaccept(second, ""))
			if got := sh(t, dump); strings.Contains(got, "10.2.") || strings.Count(got, "10.1.0.0/16") != strings.Count(after, "10.1.0.0/16") {
				t.Errorf("after the second network went:\n%s", got)
			}
			commit(t, c, Unaccept(first, ""))
			if got := sh(t, dump); sortLines(got) != sortLines(before) {
				t.Errorf("left behind:\n%s\nwas:\n%s", got, before)
			}
			commit(t, c, Unaccept(first, ""))
		})
	}
}

// iptables-restore accepts the output of iptables-save, and the reference finds its own
// jump.
func TestAcceptIsIptables(t *testing.T) {
	c := open(t)
	sh(t, "iptables-nft -P FORWARD DROP")
	commit(t, c, Accept(prefixes("10.1.0.0/16"), "OVERRIDES"))
	before := sh(t, dump)
	sh(t, `iptables-nft -C FORWARD -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD
		iptables-nft -C CNI-FORWARD -m comment --comment "CNI firewall plugin admin overrides" -j OVERRIDES
		iptables-nft -C CNI-FORWARD -d 10.1.0.0/16 -m conntrack --ctstate RELATED,ESTABLISHED,DNAT -m comment --comment "patchbay accepts 10.1.0.0/16" -j ACCEPT
		iptables-nft-save > $XTABLES_LOCKFILE.save; iptables-nft-restore < $XTABLES_LOCKFILE.save`)
	if got := sh(t, dump); got != before {
		t.Errorf("after save and restore:\n%s", got)
	}
	commit(t, c, Unaccept(prefixes("10.1.0.0/16"), "OVERRIDES"))
	if got := sh(t, dump); strings.Contains(got, "OVERRIDES") || strings.Contains(got, "10.1.") {
		t.Errorf("left behind after restore:\n%s", got)
	}
}

func sortLines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		for j := i; j > 0 && lines[j] < lines[j-1]; j-- {
			lines[j], lines[j-1] = lines[j-1], lines[j]
		}
	}
	return strings.Join(lines, "\n")
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (go test -update writes it):\n%s", path, got)
	}
}
