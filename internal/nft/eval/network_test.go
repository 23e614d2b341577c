// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package eval

import (
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// readable reports whether the kernel can have a table of this text. If not, a test with the reason is skipped.
func readable(t *testing.T, text string) (can bool) {
	if !strings.Contains(text, "{ * ") {
		return true
	}
	t.Run("others", func(t *testing.T) {
		nettest.Need(t, nettest.ElementForOthers())
		can = true
	})
	return can
}

// read loads the text of a table x, and reads it back.
func read(t *testing.T, family nftables.TableFamily, text string) *nft.Table {
	t.Helper()
	nettest.Need(t, nettest.Program("nft"))
	lines := strings.NewReplacer("} chain", "}\nchain", "} map", "}\nmap", "} set", "}\nset")
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader("flush ruleset\ntable " + nft.FamilyName(family) + " x {\n" + lines.Replace(text) + "\n}\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v\n%s\n%s", err, out, text)
	}
	fw := nft.Open(t.TempDir())
	defer fw.Close() //nolint:errcheck // a test
	table, err := fw.ReadTable(family, "x")
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func baseChain(t *nft.Table, name string) nft.Chain {
	return t.Chains[slices.IndexFunc(t.Chains, func(c nft.Chain) bool { return c.Name == name })]
}

// These are the kinds of conditions, by what they match of the traffic in one direction. Outgoing packets may begin
// a connection, incoming ones only answer.
const (
	all     = "all"
	none    = "none"    // no packet or, of outgoing packets, only answers
	some    = "some"    // an unknown value: perhaps all, perhaps none
	few     = "few"     // some packets, such as those to one port
	states  = "states"  // some states of connections
	answers = "answers" // the states of answers
	begins  = "begins"  // the states of a first packet
	unread  = "unread"  // the condition was not read, and may match all
)

// kinds are the kinds of conditions by the answers to these questions, in this order: does a rule with the condition
// drop the traffic? If the rule accepts, does the next rule drop all of it? Does a rule that accepts let it pass a
// policy that drops? Does a rule that drops still let it pass a policy that accepts?
var kinds = map[string]string{
	"out: drops, reached by none, Yes, No":       all,
	"out: -, reached by all, No, Yes":            none,
	"out: -, reached by some, Perhaps, Yes":      some,
	"out: -, reached by some, No, Yes":           few,
	"out: -, reached by all, Perhaps, Yes":       states,
	"out: begins, reached by all, Perhaps, No":   begins,
	"out: doubt, reached by some, Perhaps, Yes":  unread,
	"in: drops, reached by none, Yes, No":        all,
	"in: -, reached by all, No, Yes":             none,
	"in: -, reached by some, Perhaps, Yes":       some,
	"in: -, reached by some, No, Yes":            few,
	"in: -, reached by all, Perhaps, Yes":        states,
	"in: -, reached by all, Yes, Yes":            answers,
	"in: begins, reached by all, Perhaps, Yes":   begins,
	"in: doubt, reached by some, Perhaps, Yes":   unread,
	"frames: drops, reached by none":             all,
	"frames: -, reached by all":                  none,
	"frames: doubt, reached by some":             some,
	"frames: -, reached by some":                 few,
	"frames: doubt, reached by all":              states,
	"frames: begins, reached by all":             begins,
	"frames: -, reached by all, of what answers": answers,
}

// questions are the chains by which kindOf asks. The first rule of the last four lets the other direction pass.
const questions = `
	chain drops { type filter hook forward priority 0; RULE drop; }
	chain accepts { type filter hook forward priority 0; RULE accept; drop; }
	chain passes_out { type filter hook forward priority 0; policy drop; oifname "br0" accept; RULE accept; }
	chain passes_in { type filter hook forward priority 0; policy drop; iifname "br0" accept; RULE accept; }
	chain stops_out { type filter hook forward priority 0; oifname "br0" accept; RULE drop; }
	chain stops_in { type filter hook forward priority 0; iifname "br0" accept; RULE drop; }`

// kindOf returns the kind of the condition in the chains of questions.
func kindOf(table *nft.Table, traffic Traffic) string {
	way := "in"
	if traffic.Out {
		way = "out"
	}
	asked := func(chain string) Answer { return Passed(table, baseChain(table, chain), traffic.Net, traffic.Link) }
	words := []string{whetherDropped(table, traffic), reached(table, traffic), answerText(asked("passes_" + way)), answerText(asked("stops_" + way))}
	text := way + ": " + strings.Join(words, ", ")
	if kind, ok := kinds[text]; ok {
		return kind
	}
	return text
}

func whetherDropped(table *nft.Table, traffic Traffic) string {
	switch d := DroppedBy(table, baseChain(table, "drops"), traffic); {
	case d.Doubt != "":
		return "doubt"
	case d.At == "":
		return "-"
	case d.Begun:
		return "begins"
	}
	return "drops"
}

// reached says how much of the traffic reaches the rule after the one that accepts.
func reached(table *nft.Table, traffic Traffic) string {
	switch d := DroppedBy(table, baseChain(table, "accepts"), traffic); {
	case d.At == "":
		return "reached by none"
	case d.Maybe:
		return "reached by some"
	}
	return "reached by all"
}

func answerText(a Answer) string { return [...]string{"Yes", "Perhaps", "No"}[a] }

var (
	four = Traffic{Net: netip.MustParsePrefix("10.1.0.0/16"), Link: "br0"}
	six  = Traffic{Net: netip.MustParsePrefix("fd00:0:0:1::/64"), Link: "br0"}
)

// TestConditionsOfNetworks asks about one condition.
func TestConditionsOfNetworks(t *testing.T) {
	for _, c := range []struct {
		rule       string
		out, in    string
		v6         string // the condition in IPv6 for outgoing packets; "": there is none
		definition string
	}{
		// The family, and the addresses of the containers.
		{rule: "meta nfproto ipv4", out: all, in: all},
		{rule: "meta nfproto ipv6", out: none, in: none, v6: all},
		{rule: "meta protocol ip", out: all, in: all},
		{rule: "meta protocol != ip", out: none, in: none, v6: all},
		{rule: "ip saddr 10.1.0.0/16", out: all, in: some},
		{rule: "ip daddr 10.1.0.0/16", out: some, in: all},
		{rule: "ip saddr 10.0.0.0/15", out: all, in: some},
		{rule: "ip saddr 10.2.0.0/16", out: none, in: some},
		{rule: "ip saddr 10.1.7.0/24", out: some, in: some},
		{rule: "ip saddr 10.1.0.7", out: some, in: some},
		{rule: "ip saddr 10.2.0.7", out: none, in: some},
		{rule: "ip saddr != 10.1.0.0/16", out: none, in: some},
		{rule: "ip saddr != 10.2.0.0/16", out: all, in: some},
		{rule: "ip saddr != 10.1.0.7", out: some, in: some},
		{rule: "ip saddr & 255.0.255.0 == 10.0.7.0", out: some, in: some},
		{rule: "ip saddr & 255.1.0.0 == 10.0.0.0", out: none, in: some},
		{rule: "ip saddr & 255.1.0.0 == 10.1.0.0", out: all, in: some},
		{rule: "ip saddr 10.0.0.0-10.1.255.255", out: all, in: some},
		{rule: "ip6 saddr fd00:0:0:1::/64", out: none, in: none, v6: all},
		{rule: "ip6 saddr fd00::/16", out: none, in: none, v6: all},
		{rule: "ip6 saddr fd00:0:0:2::/64", out: none, in: none},
		{rule: "ip6 saddr fd00:0:0:1::7", out: none, in: none, v6: some},
		{rule: "ip6 daddr fd00::7", out: none, in: none, v6: some},

		// The link at their end is known, the other link is not.
		{rule: `iifname "br0"`, out: all, in: few, v6: all},
		{rule: `oifname "br0"`, out: few, in: all, v6: few},
		{rule: `iifname "br*"`, out: all, in: few, v6: all},
		{rule: `iifname "br1"`, out: none, in: some},
		{rule: `iifname != "br0"`, out: none, in: some},
		{rule: `iifname != "br1"`, out: all, in: some, v6: all},
		{rule: `oifname "eth0"`, out: some, in: none, v6: some},
		{rule: `oifname != "br0"`, out: some, in: none, v6: some},
		{rule: "iif lo", out: some, in: some, v6: some},

		// What differs between packets of any traffic.
		{rule: "meta l4proto tcp", out: few, in: few, v6: few},
		{rule: "meta l4proto != tcp", out: few, in: few, v6: few},
		{rule: "ip protocol tcp", out: some, in: some},
		{rule: "tcp dport 80", out: few, in: few, v6: few},
		{rule: "tcp dport != 80", out: few, in: few, v6: few},
		{rule: "tcp dport 80-90", out: few, in: few, v6: few},
		{rule: "tcp flags & (fin|syn|rst|ack) == syn", out: few, in: few, v6: few},
		{rule: "icmp type echo-request", out: few, in: few},
		{rule: "meta mark 1", out: few, in: few, v6: few},
		{rule: "ct mark 1", out: few, in: few, v6: few},
		{rule: "meta priority 1", out: some, in: some, v6: some},
		{rule: "ct direction original", out: some, in: some, v6: some},
		{rule: "ip ttl 64", out: some, in: some},
		{rule: `iifname "br0" ip saddr 10.1.0.0/16 tcp dport 80`, out: few, in: few},
		{rule: `meta mark 1 iifname "br1"`, out: none, in: few},
		{rule: `meta mark 1 ip saddr 10.1.0.7`, out: few, in: few},

		// States of connections.
		{rule: "ct state new", out: begins, in: begins, v6: begins},
		{rule: "ct state new,untracked", out: begins, in: begins, v6: begins},
		{rule: "ct state established", out: none, in: answers},
		{rule: "ct state established,related", out: none, in: answers},
		{rule: "ct state new,established", out: begins, in: begins, v6: begins},
		{rule: "ct state related", out: states, in: states, v6: states},
		{rule: "ct state invalid", out: states, in: states, v6: states},
		{rule: "ct state != established", out: begins, in: begins, v6: begins},
		{rule: "ct state != new", out: none, in: answers},
		{rule: "ct state { established, related }", out: none, in: answers},
		{rule: "ct state { new, untracked }", out: begins, in: begins, v6: begins},
		{rule: "ct state { new, established }", out: begins, in: begins, v6: begins},
		{rule: "ct state { invalid, untracked }", out: states, in: states, v6: states},
		{rule: "ct state != { established, related }", out: begins, in: begins, v6: begins},
		{rule: "ct state != { new, invalid }", out: none, in: answers},
		{rule: `iifname "br0" ct state new`, out: begins, in: few, v6: begins},
		{rule: `oifname "br0" ct state established`, out: few, in: answers, v6: few},
		{rule: "ip saddr 10.1.0.0/16 ct state established", out: none, in: some},
		{rule: "ct state new tcp dport 80", out: few, in: few, v6: few},
		{rule: "ct state established tcp dport 80", out: few, in: few, v6: few},
		{rule: "ct state new ip saddr 10.1.0.7", out: some, in: some},

		// Sets.
		{rule: "ip saddr { 10.1.0.0/16, 192.0.2.0/24 }", out: all, in: some},
		{rule: "ip saddr { 10.0.0.0/9, 10.128.0.0/9 }", out: all, in: some},
		{rule: "ip saddr { 10.1.7.0/24, 10.1.9.9 }", out: some, in: some},
		{rule: "ip saddr { 10.1.0.7, 192.0.2.1 }", out: some, in: some},
		{rule: "ip saddr { 10.2.0.0/16, 192.0.2.1 }", out: none, in: some},
		{rule: "ip saddr != { 10.2.0.0/16, 192.0.2.1 }", out: all, in: some},
		{rule: "ip saddr != { 10.1.0.0/16, 192.0.2.1 }", out: none, in: some},
		{rule: "ip saddr != { 10.1.0.7, 192.0.2.1 }", out: some, in: some},
		{rule: "ip6 saddr { fd00::/16, 2001:db8::/32 }", out: none, in: none, v6: all},
		{rule: "ip saddr @nobody", definition: "set nobody { type ipv4_addr; }", out: none, in: none},
		{rule: "ip saddr != @nobody", definition: "set nobody { type ipv4_addr; }", out: all, in: all},
		{rule: "ip saddr @others", definition: "set others { type ipv4_addr; elements = { * }; }", out: unread, in: unread},
		{rule: "tcp dport @others", definition: "set others { type inet_service; elements = { * }; }", out: few, in: few, v6: few},
		{rule: `iifname { "br0", "br1" }`, out: all, in: some, v6: all},
		{rule: `oifname { "br0" }`, out: few, in: all, v6: few},
		{rule: `iifname != { "br0", "br1" }`, out: none, in: some},
		{rule: `iifname { "br1", "br2" }`, out: none, in: some},
		{rule: "tcp dport { 80, 443 }", out: few, in: few, v6: few},
		{rule: "tcp dport { 80-90, 443 }", out: few, in: few, v6: few},
		{rule: "tcp dport != { 80, 443 }", out: few, in: few, v6: few},
		{rule: "meta l4proto { tcp, udp }", out: few, in: few, v6: few},
		{rule: `iifname . ip saddr { "br0" . 10.1.0.0/16, "br1" . 10.2.0.0/16 }`, out: all, in: some},
		{rule: `iifname . ip saddr { "br1" . 10.1.0.0/16, "br0" . 10.2.0.0/16 }`, out: none, in: some},
		{rule: `iifname . ip saddr { "br0" . 10.1.0.7 }`, out: some, in: few},
		{rule: `ip daddr . oifname { 10.1.0.0/24 . "br0" }`, out: few, in: some},
		{rule: `iifname . ip saddr != { "br1" . 10.1.0.0/16 }`, out: all, in: some},
		{rule: "ip saddr . tcp dport { 10.1.0.0/24 . 80 }", out: few, in: few},
		{rule: "ip saddr . tcp dport { 10.2.0.0/24 . 80 }", out: none, in: few},
		{rule: `iifname . ct state { "br0" . new }`, out: begins, in: few, v6: begins},
		{rule: `iifname . ct state { "br1" . new }`, out: none, in: some},

		// Expressions that decide nothing by themselves, and expressions that this package does not know.
		{rule: "counter ip saddr 10.1.0.0/16 log prefix \"x\"", out: all, in: some},
		{rule: "meta mark set 1 ip saddr 10.1.0.0/16", out: all, in: some},
		{rule: "ct mark set 1 ip saddr 10.1.0.0/16", out: all, in: some},
		{rule: "ip saddr 10.1.0.0/16 ip ttl set 1", out: all, in: some},
		{rule: "ip saddr 10.2.0.0/16 ip ttl set 1", out: none, in: some},
		{rule: "limit rate 1/second", out: some, in: some, v6: some},
		{rule: "fib saddr type local", out: some, in: some, v6: some},
		{rule: `fib saddr type local iifname "br1"`, out: none, in: some},
		{rule: "counter name cnt", definition: "counter cnt { }", out: all, in: all, v6: all},
		{rule: "meta mark set ip saddr map { 10.1.0.0/16 : 1 }", out: all, in: some},
		{rule: "meta mark set ip saddr map { 10.2.0.0/16 : 1 }", out: none, in: some},
		{rule: "meta mark set tcp dport map { 80 : 1 }", out: few, in: few, v6: few},
	} {
		if !readable(t, c.definition) {
			continue
		}
		table := read(t, nftables.TableFamilyINet, c.definition+strings.ReplaceAll(questions, "RULE", c.rule))
		if c.v6 == "" {
			c.v6 = none
		}
		leaves, leaves6 := four, six
		leaves.Out, leaves6.Out = true, true
		if out, in, v6 := kindOf(table, leaves), kindOf(table, four), kindOf(table, leaves6); out != c.out || in != c.in || v6 != c.v6 {
			t.Errorf("%s: matches of what leaves %q, comes in %q, leaves by IPv6 %q; want %q, %q, %q", c.rule, out, in, v6, c.out, c.in, c.v6)
		}
	}
}

// TestFrames asks about one condition for frames of ports of a bridge. A rule that may drop any of them counts.
func TestFrames(t *testing.T) {
	for _, c := range []struct{ rule, out, in string }{
		{"meta protocol ip", all, all},
		{"ether type ip", all, all},
		{"ether type arp", none, none},
		{"ether type ip6", none, none},
		{`iifname "v0"`, some, some},
		{`oifname "v1"`, some, some},
		{`iifname "v9"`, none, none},
		{`iifname "v*"`, some, some},
		{`iifname != "v0"`, some, some},
		{`iifname != "v9"`, all, all},
		{`iifname { "v0", "v9" }`, some, some},
		{`iifname { "v8", "v9" }`, none, none},
		{`iifname . oifname { "v8" . "v9" }`, none, none},
		{`iifname . oifname { "v0" . "v9" }`, none, none},
		{`iifname . oifname { "v0" . "v1" }`, some, some},
		{"ether saddr 02:00:00:00:00:01", some, some},
		{"ether saddr != 02:00:00:00:00:01", some, some},
		{"ip saddr 10.1.0.0/16", all, few},
		{"ip daddr 10.1.0.0/16", few, all},
		{"ip saddr 10.1.0.7", some, few},
		{"ip daddr != 10.1.0.0/16", some, none},
		{"ip saddr 10.2.0.0/16", none, few},
		{"tcp dport 80", few, few},
		{"tcp dport != 80", few, few},
		{"meta l4proto != tcp", some, some},
		{"meta mark 1", few, few},
		{"tcp dport { 80, 443 }", few, few},
		{"meta mark != { 80, 443 }", some, some},
		{"vlan id 5", none, none},
		{"limit rate 1/second", some, some},
	} {
		table := read(t, nftables.TableFamilyBridge, strings.NewReplacer("RULE", c.rule, "br0", "v0").Replace(questions))
		for out, want := range map[bool]string{true: c.out, false: c.in} {
			traffic := Traffic{Net: four.Net, Ports: []string{"v0", "v1"}, Out: out}
			text := "frames: " + whetherDropped(table, traffic) + ", " + reached(table, traffic)
			if kind, ok := kinds[text]; ok {
				text = kind
			}
			if text != want {
				t.Errorf("%s (out %t): matches %q, want %q", c.rule, out, text, want)
			}
		}
	}
}

// TestChains asks about several rules, jumps and policies. There is one answer for outgoing packets, one for
// incoming packets, and one that says whether connections pass.
func TestChains(t *testing.T) {
	const hook = "type filter hook forward priority 0; "
	for _, c := range []struct{ chains, out, in, passed string }{
		{"chain base { " + hook + "}", "-", "-", "Yes"},
		{"chain base { " + hook + "policy drop; }", "-", "-", "No"},
		{"chain base { " + hook + "drop; }", "rule 1 of chain base", "rule 1 of chain base", "No"},
		{"chain base { " + hook + "reject; }", "rule 1 of chain base", "rule 1 of chain base", "No"},
		{"chain base { " + hook + "policy drop; accept; }", "-", "-", "Yes"},
		{"chain base { " + hook + "accept; drop; }", "-", "-", "Yes"},
		{"chain base { " + hook + "policy drop; return; accept; }", "rule 1 of chain base, and the policy of the chain", "rule 1 of chain base, and the policy of the chain", "No"},
		{"chain base { " + hook + "return; drop; }", "-", "-", "Yes"},
		{"chain base { " + hook + "continue; drop; }", "rule 2 of chain base", "rule 2 of chain base", "No"},
		{"chain base { " + hook + `iifname "br0" return; drop; }`, "-", "rule 2 of chain base", "No"},
		{"chain base { " + hook + "policy drop; tcp dport 80 return; accept; }", "-", "-", "Yes"},

		// An earlier rule may accept or drop.
		{"chain base { " + hook + "tcp dport 80 accept; drop; }", "rule 2 of chain base, maybe", "rule 2 of chain base, maybe", "No"},
		{"chain base { " + hook + "ip saddr 10.1.0.7 accept; drop; }", "rule 2 of chain base, maybe", "rule 2 of chain base, maybe", "Perhaps"},
		{"chain base { " + hook + "tcp dport 80 drop; ip saddr 10.1.0.7 drop; }", "-", "-", "Yes"},
		{"chain base { " + hook + "ct state new accept; drop; }", "rule 2 of chain base", "rule 2 of chain base", "Perhaps"},
		{"chain base { " + hook + "ct state established,related accept; drop; }", "rule 2 of chain base", "rule 2 of chain base", "No"},
		{"chain base { " + hook + "policy drop; ct state established,related accept; }", "-", "-", "No"},
		{"chain base { " + hook + `policy drop; ct state established,related accept; iifname "br0" accept; }`, "-", "-", "Yes"},
		{"chain base { " + hook + `ct state established,related accept; iifname "br0" accept; drop; }`, "-", "rule 3 of chain base, maybe", "Yes"},
		{"chain base { " + hook + `policy drop; ct state related accept; iifname "br0" accept; }`, "-", "-", "Perhaps"},
		{"chain base { " + hook + `policy drop; ct state invalid drop; iifname "br0" accept; oifname "br0" accept; }`, "-", "-", "Yes"},
		{"chain base { " + hook + "ct state new drop; drop; }", "rule 1 of chain base, begun", "rule 1 of chain base, begun", "No"},
		{"chain base { " + hook + "ct state established accept; ct state new drop; }", "rule 2 of chain base, begun", "rule 2 of chain base, begun", "No"},
		{"chain base { " + hook + "ct state new tcp dport 80 accept; ct state new drop; }", "rule 2 of chain base, begun, maybe", "rule 2 of chain base, begun, maybe", "No"},
		{"chain base { " + hook + "tcp dport 80 ct state established accept; ct state new drop; }", "rule 2 of chain base, begun, maybe", "rule 2 of chain base, begun, maybe", "No"},
		{"chain base { " + hook + `oifname "br0" ct state new drop; }`, "-", "rule 1 of chain base, begun", "Yes"},
		{"chain base { " + hook + `ip saddr @s drop; ip daddr @s drop; } set s { type ipv4_addr; elements = { * }; }`, "doubt: rule 1 of chain base", "doubt: rule 1 of chain base", "Yes"},
		{"chain base { " + hook + `ip saddr @s drop; drop; } set s { type ipv4_addr; elements = { * }; }`, "rule 2 of chain base", "rule 2 of chain base", "No"},

		// Jumps. One whose condition is uncertain is not followed: it may accept.
		{"chain a { drop; } chain base { " + hook + "jump a; }", "rule 1 of chain a", "rule 1 of chain a", "No"},
		{"chain a { return; drop; } chain base { " + hook + "jump a; drop; }", "rule 2 of chain base", "rule 2 of chain base", "No"},
		{"chain a { accept; } chain base { " + hook + "jump a; drop; }", "-", "-", "Yes"},
		{"chain a { } chain base { " + hook + "policy drop; jump a; accept; }", "-", "-", "Yes"},
		{"chain a { } chain base { " + hook + "goto a; drop; }", "-", "-", "Yes"},
		{"chain a { } chain base { " + hook + "policy drop; goto a; accept; }", "-", "-", "No"},
		{"chain a { } chain b { goto a; accept; } chain base { " + hook + "policy drop; jump b; accept; }", "-", "-", "Yes"},
		{"chain a { drop; } chain b { jump a; } chain base { " + hook + "goto b; }", "rule 1 of chain a", "rule 1 of chain a", "No"},
		{"chain a { drop; } chain base { " + hook + `iifname "br*" jump a; }`, "rule 1 of chain a", "-", "No"},
		{"chain a { drop; } chain base { " + hook + "tcp dport 80 jump a; drop; }", "rule 2 of chain base, maybe", "rule 2 of chain base, maybe", "No"},
		{"chain a { drop; } chain base { " + hook + "limit rate 1/second jump a; drop; }", "rule 2 of chain base, maybe", "rule 2 of chain base, maybe", "Perhaps"},
		{"chain a { drop; } chain base { " + hook + "ct state new jump a; }", "rule 1 of chain a, begun", "rule 1 of chain a, begun", "No"},
		{"chain a { accept; } chain base { " + hook + "ct state new jump a; drop; }", "rule 2 of chain base", "rule 2 of chain base", "Perhaps"},
		{"chain a { accept; } chain base { " + hook + "ct state established jump a; drop; }", "rule 2 of chain base", "rule 2 of chain base", "No"},
		{"chain a { ct state new drop; } chain base { " + hook + "jump a; drop; }", "rule 1 of chain a, begun", "rule 1 of chain a, begun", "No"},
		{"chain a { tcp dport 80 accept; } chain base { " + hook + "jump a; drop; }", "rule 2 of chain base, maybe", "rule 2 of chain base, maybe", "No"},

		// Maps to verdicts.
		{"chain base { " + hook + `iifname vmap { "br0" : drop, "br1" : accept }; }`, "rule 1 of chain base", "-", "No"},
		{"chain base { " + hook + `iifname vmap { "br0" : accept, "br1" : drop }; drop; }`, "-", "rule 2 of chain base, maybe", "No"},
		{"chain base { " + hook + `iifname vmap { "br1" : drop }; }`, "-", "-", "Yes"},
		{"chain a { drop; } chain base { " + hook + `oifname vmap { "br0" : jump a }; }`, "-", "rule 1 of chain a", "No"},
		{"chain a { drop; } chain base { " + hook + `oifname vmap { "br0" : goto a, "eth0" : goto a }; }`, "-", "rule 1 of chain a", "No"},
		{"chain base { " + hook + `ip saddr vmap { 10.1.0.0/16 : drop }; }`, "rule 1 of chain base", "-", "No"},
		{"chain base { " + hook + `ip saddr vmap { 10.1.0.7 : accept }; drop; }`, "rule 2 of chain base, maybe", "rule 2 of chain base, maybe", "Perhaps"},
		{"chain base { " + hook + `tcp dport vmap { 80 : accept, 90 : drop }; drop; }`, "rule 2 of chain base, maybe", "rule 2 of chain base, maybe", "No"},
		{"chain base { " + hook + "policy drop; ct state vmap { established : accept, related : accept, invalid : drop }; }", "-", "-", "Perhaps"},
		{"chain base { " + hook + `policy drop; ct state vmap { established : accept, invalid : drop }; iifname "br0" accept; }`, "-", "-", "Yes"},
		{"chain base { " + hook + "ct state vmap { new : drop, established : accept }; }", "rule 1 of chain base, begun", "rule 1 of chain base, begun", "No"},
		{"chain a { drop; } chain base { " + hook + `iifname "br0" ct state vmap { new : jump a, invalid : drop }; }`, "rule 1 of chain a, begun", "-", "No"},
		{"chain base { " + hook + `iifname . ct state vmap { "br0" . new : drop }; }`, "rule 1 of chain base, begun", "-", "No"},
		{"chain base { " + hook + "ip saddr vmap @m; drop; } map m { type ipv4_addr : verdict; elements = { * : drop }; }", "rule 2 of chain base, maybe", "rule 2 of chain base, maybe", "Perhaps"},
		{"chain base { " + hook + "ip saddr vmap @m; drop; } map m { type ipv4_addr : verdict; }", "rule 2 of chain base", "rule 2 of chain base", "No"},
		{"chain base { " + hook + `ip saddr . oifname vmap { 10.1.0.0/16 . "br0" : accept }; drop; }`, "rule 2 of chain base, maybe", "rule 2 of chain base, maybe", "No"},
	} {
		if !readable(t, c.chains) {
			continue
		}
		table := read(t, nftables.TableFamilyINet, c.chains)
		for name, want := range map[string]string{"out": c.out, "in": c.in} {
			traffic := four
			traffic.Out = name == "out"
			if got := tell(DroppedBy(table, baseChain(table, "base"), traffic)); got != want {
				t.Errorf("%s: %s: got %q, want %q", c.chains, name, got, want)
			}
		}
		if got := answerText(Passed(table, baseChain(table, "base"), four.Net, four.Link)); got != c.passed {
			t.Errorf("%s: passed %s, want %s", c.chains, got, c.passed)
		}
	}
}

// tell writes an answer in words.
func tell(d Drop) string {
	text := d.At
	if d.Begun {
		text += ", begun"
	}
	if d.Maybe {
		text += ", maybe"
	}
	if d.Doubt != "" {
		text += "doubt: " + d.Doubt
	}
	if text == "" {
		return "-"
	}
	return text
}

// TestLinks asks for traffic whose link or its index is known, or neither.
func TestLinks(t *testing.T) {
	one := netip.MustParsePrefix("10.1.0.7/32")
	table := read(t, nftables.TableFamilyINet, `chain a { drop; }
		chain by_name { type filter hook forward priority 0; iifname "br0" drop; }
		chain by_other { type filter hook forward priority 0; iifname != "br0" drop; }
		chain by_index { type filter hook forward priority 0; iif lo drop; }
		chain no_index { type filter hook forward priority 0; iif != lo drop; }
		chain back { type filter hook forward priority 0; oif lo drop; }
		chain indexes { type filter hook forward priority 0; iif . ip saddr { lo . 10.1.0.7 } drop; }
		chain address { type filter hook forward priority 0; ip saddr 10.1.0.7 drop; }
		chain subnet { type filter hook forward priority 0; ip saddr 10.1.0.0/24 drop; }
		chain accepts { type filter hook forward priority 0; policy drop; iifname "br0" accept; oifname "br0" accept; }
		chain accepts_all { type filter hook forward priority 0; policy drop; ip saddr 10.1.0.0/16 accept; ip daddr 10.1.0.0/16 accept; }`)
	for _, c := range []struct {
		chain   string
		traffic Traffic
		want    string
	}{
		{"by_name", Traffic{Net: one, Out: true}, "-"},
		{"by_name", Traffic{Net: one, Link: "br0", Out: true}, "rule 1 of chain by_name"},
		{"by_name", Traffic{Net: one, Link: "br00", Out: true}, "-"},
		{"by_other", Traffic{Net: one, Out: true}, "-"},
		{"by_other", Traffic{Net: one, Link: "br00", Out: true}, "rule 1 of chain by_other"},
		{"by_index", Traffic{Net: one, Out: true}, "-"},
		{"by_index", Traffic{Net: one, Out: true, Index: 1}, "rule 1 of chain by_index"},
		{"by_index", Traffic{Net: one, Index: 1}, "-"},
		{"by_index", Traffic{Net: one, Out: true, Index: 2}, "-"},
		{"no_index", Traffic{Net: one, Out: true, Index: 2}, "rule 1 of chain no_index"},
		{"back", Traffic{Net: one, Index: 1}, "rule 1 of chain back"},
		{"indexes", Traffic{Net: one, Out: true, Index: 1}, "rule 1 of chain indexes"},
		{"address", Traffic{Net: one, Out: true}, "rule 1 of chain address"},
		{"subnet", Traffic{Net: one, Out: true}, "rule 1 of chain subnet"},
		{"subnet", Traffic{Net: netip.MustParsePrefix("10.1.0.99/24"), Out: true}, "rule 1 of chain subnet"},
		{"subnet", Traffic{Net: four.Net, Out: true}, "-"},
	} {
		if got := tell(DroppedBy(table, baseChain(table, c.chain), c.traffic)); got != c.want {
			t.Errorf("%s, %+v: got %q, want %q", c.chain, c.traffic, got, c.want)
		}
	}
	for link, want := range map[string]string{"br0": "Yes", "": "Perhaps", "br1": "Perhaps"} {
		if got := answerText(Passed(table, baseChain(table, "accepts"), one, link)); got != want {
			t.Errorf("link %q passes: %s, want %s", link, got, want)
		}
	}
	if got := Passed(table, baseChain(table, "accepts_all"), four.Net, ""); got != Yes {
		t.Errorf("by its addresses it passes: %s", answerText(got))
	}
}

// TestFramesOfPolicies asks about policies of chains for frames: unlike other policies they count by themselves.
func TestFramesOfPolicies(t *testing.T) {
	table := read(t, nftables.TableFamilyBridge, `chain a { drop; }
		chain drops { type filter hook forward priority 0; policy drop; }
		chain no_arp { type filter hook forward priority 0; policy drop; ether type arp accept; tcp dport 80 accept; }
		chain returns { type filter hook forward priority 0; policy drop; return; }
		chain jumps { type filter hook forward priority 0; ether saddr 02:00:00:00:00:01 jump a; }
		chain accepts { type filter hook forward priority 0; policy drop; accept; }`)
	for chain, want := range map[string]string{
		"drops":   "the policy of chain drops",
		"no_arp":  "the policy of chain no_arp, maybe",
		"returns": "rule 1 of chain returns, and the policy of the chain",
		"jumps":   "doubt: rule 1 of chain a",
		"accepts": "-",
	} {
		if got := tell(DroppedBy(table, baseChain(table, chain), Traffic{Net: four.Net, Ports: []string{"v0"}})); got != want {
			t.Errorf("%s: got %q, want %q", chain, got, want)
		}
	}
	for name, want := range map[string]string{"v0": "doubt: rule 1 of chain base", "v9": "-"} { // not every kernel has the expression of bridges
		for _, key := range []uint32{unix.NFT_META_BRI_IIFNAME, unix.NFT_META_BRI_OIFNAME} {
			table := &nft.Table{Name: "x", Rules: map[string][]nft.Rule{"base": {{Exprs: linkIs(t, key, name, drop)}}}}
			if got := tell(DroppedBy(table, nft.Chain{Name: "base"}, Traffic{Net: four.Net, Ports: []string{"v0"}})); got != want {
				t.Errorf("bridge %s: got %q, want %q", name, got, want)
			}
		}
	}
}
