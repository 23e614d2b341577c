// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"errors"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/inventory"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/plugin"
)

// torn returns the evidence in an unreadable record.
func torn(plugin string, o owner.Key) Candidate {
	return Candidate{
		Owner: o, records: []kept{{plugin: plugin, path: "/run/" + string(o) + "." + plugin, torn: true, marked: plugin == "macvlan"}},
		Objects: []Object{{"torn record", plugin}}, Since: time.Date(2026, 11, 21, 11, 0, 0, 0, time.UTC),
	}
}

// told makes traces of what a report would say.
func (a *Candidate) told() {
	a.evidence.Date(a.Since)
	for _, path := range a.NetNS {
		a.evidence.Space(path, nil)
	}
}

// What gc finds, as evidence. The table itself is tested in package inventory.
func TestJudge(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	old, young, beforeBoot := now.Add(-time.Hour), now.Add(-time.Second), now.Add(-48*time.Hour)
	addr := netip.MustParseAddr("10.1.0.5")
	only := func(ids ...string) func(string) bool { return func(id string) bool { return slices.Contains(ids, id) } }
	for _, tc := range []struct {
		name   string
		a      Candidate
		listed func(string) bool
		inUse  string
		err    error
		seen   time.Time
		want   State
		why    string
	}{
		{name: "a namespace that exists", a: Candidate{NetNS: []string{"gone", "there"}, Since: old}, want: Alive},
		{name: "a namespace that is gone", a: Candidate{NetNS: []string{"gone"}, Since: old}, want: Dead, why: "namespace gone is gone"},
		{name: "hidden", a: Candidate{NetNS: []string{"gone", "hidden"}, Since: old}, want: Unsure, why: "hidden is no namespace here"},
		{name: "hidden, not listed", a: Candidate{ContainerID: "c", NetNS: []string{"hidden"}, Since: old}, listed: only(), want: Unsure, why: "hidden is no namespace here"},
		{name: "hidden, before the boot", a: Candidate{NetNS: []string{"hidden"}, Since: beforeBoot}, want: Dead, why: "booted"},
		{name: "gone, but its pair carries", a: Candidate{NetNS: []string{"gone"}, Since: old, links: []link{{"veth1", 7}}}, want: Alive, why: "veth1 carries"},
		{name: "unknown, but its pair carries", a: Candidate{Since: old, links: []link{{"veth1", 7}}}, want: Alive, why: "veth1 carries"},
		{name: "pending, though its pair carries", a: Candidate{ContainerID: "c", Since: old, pendingDriver: "lab", links: []link{{"veth1", 7}}}, want: Dead},
		{name: "forgotten, only cached", a: Candidate{ContainerID: "forgotten", Pod: "a/b", NetNS: []string{"there"}, Since: old, cached: &chain.Cached{}}, want: Dead, why: "forgotten"},
		{name: "forgotten, cached and a link", a: Candidate{ContainerID: "forgotten", Pod: "a/b", NetNS: []string{"there"}, Since: old, cached: &chain.Cached{}, links: []link{{"veth1", 7}}}, want: Alive},
		{name: "forgotten, of no pod", a: Candidate{ContainerID: "forgotten", NetNS: []string{"there"}, Since: old, cached: &chain.Cached{}}, want: Alive},
		{name: "gone, young", a: Candidate{NetNS: []string{"gone"}, Since: young}, want: Unsure, why: "1s old"},
		{name: "gone, dated ahead of the clock", a: Candidate{NetNS: []string{"gone"}, Since: now.Add(72 * time.Hour)}, want: Unsure, why: "dated 72h0m0s ahead of the clock"},
		{name: "gone, listed", a: Candidate{ContainerID: "c", NetNS: []string{"gone"}, Since: old}, listed: only("c"), want: Unsure, why: "lists"},
		{name: "gone, not listed", a: Candidate{ContainerID: "c", NetNS: []string{"gone"}, Since: old}, listed: only("d"), want: Dead},
		{name: "exists, not listed", a: Candidate{ContainerID: "c", NetNS: []string{"there"}, Since: old}, listed: only(), want: Alive},
		{name: "unknown", a: Candidate{ContainerID: "c", Since: old}, want: Unsure, why: "--from"},
		{name: "unknown, before the boot", a: Candidate{ContainerID: "c", Since: beforeBoot}, want: Dead, why: "booted"},
		{name: "before the boot, in use", a: Candidate{ContainerID: "c", Since: beforeBoot}, inUse: "/proc/7/ns/net", want: Unsure, why: "booted, but its address is in use in /proc/7"},
		{name: "before the boot, no view", a: Candidate{ContainerID: "c", Since: beforeBoot}, err: errors.New("no rights"), want: Unsure, why: "no rights"},
		{
			name: "before the boot, but in the kernel", a: Candidate{ContainerID: "c", Since: beforeBoot, kernel: []Object{{"link", "x"}}},
			want: Unsure, why: "--from",
		},
		{name: "unknown, not listed", a: Candidate{ContainerID: "c", Since: old, Addrs: []netip.Addr{addr}}, listed: only(), want: Dead},
		{name: "unknown, not listed, in use", a: Candidate{ContainerID: "c", Since: old}, listed: only(), inUse: "/proc/7/ns/net", want: Unsure, why: "/proc/7"},
		{name: "unknown, not listed, no view", a: Candidate{ContainerID: "c", Since: old}, listed: only(), err: errors.New("no rights"), want: Unsure, why: "no rights"},
		{name: "nobody's", a: Candidate{Since: old}, listed: only(), want: Unsure, why: "its owner is unknown"},
		{name: "in the firewall alone", a: Candidate{ContainerID: "c", Since: old, elements: make([]nft.Element, 1)}, want: Unsure, why: "does not see all"},
		{name: "in the firewall alone, with a masquerade", a: Candidate{ContainerID: "c", Since: old, elements: nft.Masqueraded(netip.PrefixFrom(addr, 24), "")}, want: Dead, why: "only the firewall has a trace of it"},
		{name: "in the firewall alone, in use", a: Candidate{ContainerID: "c", Since: old, elements: nft.Masqueraded(netip.PrefixFrom(addr, 24), "")}, inUse: "/proc/7/ns/net", want: Unsure, why: "in use in /proc/7"},
		{name: "in the firewall alone, no view", a: Candidate{ContainerID: "c", Since: old, elements: nft.Masqueraded(netip.PrefixFrom(addr, 24), "")}, err: errors.New("no rights"), want: Unsure, why: "no rights"},
		{name: "in the firewall, and an address", a: Candidate{ContainerID: "c", Since: old, elements: make([]nft.Element, 1), pools: make([]pool, 1)}, want: Unsure, why: "--from"},
		{name: "torn", a: torn("macvlan", "keeps"), want: Unsure, why: "its link is in /proc/8/ns/net"},
		{name: "torn, of more plugins", a: torn("sbr", "k"), want: Unsure, why: "delete /run/k.sbr"},
		{name: "torn, without a view of all", a: torn("macvlan", "k"), want: Unsure, why: "does not see all"},
		{name: "pending", a: Candidate{ContainerID: "c", NetNS: []string{"there"}, Since: old, pendingDriver: "lab"}, listed: only("c"), want: Dead, why: "driver lab has not been notified"},
		{
			name: "pending, and attached again", want: Alive,
			a: Candidate{ContainerID: "c", NetNS: []string{"there"}, Since: old, pendingDriver: "lab", records: []kept{{plugin: "bridge"}, {plugin: "cnm", driver: true, ended: true}}},
		},
		{name: "pending, young", a: Candidate{ContainerID: "c", Since: young, pendingDriver: "lab"}, want: Unsure, why: "1s old"},
		{name: "the Docker driver's", a: Candidate{ContainerID: "driver's", Since: old}, listed: only(), want: Unsure, why: "patchbayd docker"},
		{name: "the Docker driver's, gone", a: Candidate{ContainerID: "driver's", NetNS: []string{"gone"}, Since: old}, want: Unsure, why: "patchbayd docker"},
		{name: "without age, seen now", a: Candidate{ContainerID: "c"}, listed: only(), seen: now, want: Unsure, why: "0s old"},
		{name: "without age, seen before", a: Candidate{ContainerID: "c"}, listed: only(), seen: old, want: Dead},
	} {
		w := &world{
			now: now, boot: now.Add(-24 * time.Hour), grace: time.Minute, listed: tc.listed,
			namespace: func(path string, was *life.Mark) (life.State, string) {
				switch {
				case path == "there" && (was == nil || was.Ino == 1):
					return life.Alive, "its namespace there exists"
				case path == "hidden":
					return life.Unsure, "hidden is no namespace here"
				}
				return life.Dead, "its namespace " + path + " is gone"
			},
			carries: func(a *Candidate, _ bool) (string, error) {
				if len(a.links) > 0 {
					return a.links[0].name, nil
				}
				return "", nil
			},
			forgotten: func(s life.Suspect) (string, bool) {
				return "forgotten", s.ID == "forgotten"
			},
			seesAll:   func() bool { return false },
			driver:    func(id string) bool { return id == "driver's" },
			inUse:     func(...netip.Addr) (string, error) { return tc.inUse, tc.err },
			marked:    func(o owner.Key) (string, error) { return map[owner.Key]string{"keeps": "/proc/8/ns/net"}[o], nil },
			firstSeen: func(*Candidate) time.Time { return tc.seen },
		}
		tc.a.told()
		if got, why := w.judge(&tc.a); got != tc.want || !strings.Contains(why, tc.why) {
			t.Errorf("%s: %s, %q", tc.name, got, why)
		}
	}
}

// The address of a Docker driver goes last too, and only if nothing leads to it.
func TestPart(t *testing.T) {
	s := plugin.NewSession([]*plugin.Plugin{{Name: "bridge", Kind: plugin.Interface}, {Name: "portmap", Kind: plugin.Chained}, {Name: "host-local", Kind: plugin.IPAM}})
	defer s.Close()
	for k, want := range map[kept]inventory.Part{
		{plugin: "portmap"}: inventory.Rules, {plugin: "theirs"}: inventory.Rules, {plugin: "bridge"}: inventory.Link, {plugin: "host-local"}: inventory.Address,
		{plugin: "cnm", driver: true}: inventory.Link, {plugin: "cnm-ipam", driver: true}: inventory.Address,
	} {
		if got := (&remover{s: s}).part(k); got != want {
			t.Errorf("%s: %v, want %v", k.plugin, got, want)
		}
	}
}

// planLegacy finds iptables-legacy's rules of a dead attachment in the output of
// iptables-save, and no others.
func TestPlanLegacy(t *testing.T) {
	c1 := &Candidate{Network: "my net", ContainerID: "c1", IfName: "eth0", Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.5")}}
	chains := c1.inIPTables().LegacyChains()
	save := `# Generated by iptables-save
*nat
:PREROUTING ACCEPT [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
:` + chains[0] + ` - [0:0]
:` + chains[1] + ` - [0:0]
:CNI-0123456789abcdef01234567 - [0:0]
-A POSTROUTING -s 10.1.0.5/32 -m comment --comment "name: \"my net\" id: \"c1\"" -j ` + chains[0] + `
-A POSTROUTING -s 10.1.0.6/32 -m comment --comment "name: \"my net\" id: \"c2\"" -j CNI-0123456789abcdef01234567
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"my net\" id: \"c1\"" -m multiport --dports 8080 -j ` + chains[1] + `
-A ` + chains[1] + ` -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.1.0.5:80
COMMIT
`
	want := [][]string{
		{"iptables-legacy", "-t", "nat", "-D", "POSTROUTING", "-s", "10.1.0.5/32", "-m", "comment", "--comment", `name: "my net" id: "c1"`, "-j", chains[0]},
		{"iptables-legacy", "-t", "nat", "-D", "CNI-HOSTPORT-DNAT", "-p", "tcp", "-m", "comment", "--comment", `dnat name: "my net" id: "c1"`,
			"-m", "multiport", "--dports", "8080", "-j", chains[1]},
		{"iptables-legacy", "-t", "nat", "-F", chains[0]}, {"iptables-legacy", "-t", "nat", "-F", chains[1]},
		{"iptables-legacy", "-t", "nat", "-X", chains[0]}, {"iptables-legacy", "-t", "nat", "-X", chains[1]},
	}
	if diff := cmp.Diff(want, planLegacy("iptables-legacy", "nat", save, []*Candidate{c1})); diff != "" {
		t.Error(diff)
	}
}

// Rules of the plugin firewall are found by the address alone.
func TestPlanLegacyFilter(t *testing.T) {
	save := `*filter
:CNI-FORWARD - [0:0]
-A FORWARD -s 10.1.0.5/32 -j ACCEPT
-A CNI-FORWARD -d 10.1.0.5/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A CNI-FORWARD -s 10.1.0.5/32 -j ACCEPT
-A CNI-FORWARD -s 10.1.0.50/32 -j ACCEPT
`
	c1 := &Candidate{Network: "n", ContainerID: "c1", Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.5")}}
	want := [][]string{
		{"iptables-legacy", "-t", "filter", "-D", "CNI-FORWARD", "-d", "10.1.0.5/32", "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT"},
		{"iptables-legacy", "-t", "filter", "-D", "CNI-FORWARD", "-s", "10.1.0.5/32", "-j", "ACCEPT"},
	}
	if diff := cmp.Diff(want, planLegacy("iptables-legacy", "filter", save, []*Candidate{c1})); diff != "" {
		t.Error(diff)
	}
}

// gc cannot read the rules, so it gives the operator a command. The command removes exactly the
// rules of the dead attachment.
func TestBlind(t *testing.T) {
	nettest.Need(t, nettest.Feature{Name: "iptables-legacy for this user", Probe: func() error {
		return errors.Join(exec.Command("iptables-legacy", "-L").Run(), exec.Command("iptables-legacy-save").Run())
	}})
	c1 := &Candidate{Network: "n", ContainerID: "c1", Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.5"), netip.MustParseAddr("fd00::5")}}
	chain := c1.inIPTables().LegacyChains()[0]
	run := func(argv ...string) string {
		out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", argv, err, out)
		}
		return string(out)
	}
	for _, rule := range []string{
		"-t nat -N " + chain, "-t nat -A POSTROUTING -s 10.1.0.5/32 -j " + chain, "-t nat -A POSTROUTING -s 10.1.0.6/32 -j ACCEPT",
		"-t filter -N CNI-FORWARD", "-t filter -A CNI-FORWARD -s 10.1.0.5/32 -j ACCEPT", "-t filter -A CNI-FORWARD -s 10.1.0.50/32 -j ACCEPT",
	} {
		run(append([]string{"iptables-legacy"}, strings.Fields(rule)...)...)
	}
	for _, table := range []string{"nat", "filter"} {
		for _, argv := range blind("iptables-legacy", table, []*Candidate{c1}) {
			run(argv...)
		}
	}
	left := run("iptables-legacy-save")
	if strings.Contains(left, chain) || strings.Contains(left, "10.1.0.5/32") || !strings.Contains(left, "10.1.0.6/32") || !strings.Contains(left, "10.1.0.50/32") {
		t.Error(left)
	}
	for _, clean := range []string{"-t nat -F", "-t filter -F", "-t filter -X"} {
		run(append([]string{"iptables-legacy"}, strings.Fields(clean)...)...)
	}
}

func TestParseIDs(t *testing.T) {
	got, err := parseIDs("# live\n\nabc  # web\r\ndef\n")
	if diff := cmp.Diff(map[string]bool{"abc": true, "def": true}, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	for _, bad := range []string{"CONTAINER ID   IMAGE", "error: no connection", "../x"} {
		if ids, err := parseIDs(bad); err == nil {
			t.Errorf("%q: %v", bad, ids)
		}
	}
}

func FuzzSplitSaved(f *testing.F) {
	f.Add(`-A X --comment "a \"b\" c" -j Y`)
	f.Fuzz(func(t *testing.T, line string) {
		for _, w := range splitSaved(line) {
			if len(w) > len(line) {
				t.Errorf("%q: %q", line, w)
			}
		}
	})
}

// The clock was set back, and no grace period is set. Objects do not count as too young.
func TestJudgeFuture(t *testing.T) {
	now := time.Now()
	w := &world{
		now: now, driver: func(string) bool { return false }, carries: func(*Candidate, bool) (string, error) { return "", nil },
		namespace: func(string, *life.Mark) (life.State, string) { return life.Dead, "gone" },
	}
	a := &Candidate{NetNS: []string{"gone"}, Since: now.Add(time.Hour)}
	a.told()
	if state, why := w.judge(a); state != Dead {
		t.Errorf("%s: %s", state, why)
	}
}
