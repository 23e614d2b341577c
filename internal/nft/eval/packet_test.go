// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package eval

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
)

// through loads a table, and follows a packet through its chain "base".
func through(t *testing.T, table string, p Packet) Path {
	t.Helper()
	return load(t, table)(p)
}

// load loads a table, and returns what follows a packet through its chain "base".
func load(t *testing.T, table string) func(Packet) Path {
	t.Helper()
	read := read(t, nftables.TableFamilyINet, table)
	at := slices.IndexFunc(read.Chains, func(c nft.Chain) bool { return c.Name == "base" })
	return func(p Packet) Path {
		t.Helper()
		path, err := Through(read, read.Chains[at], p)
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
}

const (
	tcp  = 6
	udp  = 17
	icmp = 1
)

var (
	packet4 = Packet{From: netip.MustParseAddr("10.1.0.1"), To: netip.MustParseAddr("10.1.0.2"), Protocol: tcp, Port: 80}
	packet6 = Packet{V6: true, From: netip.MustParseAddr("fd00::1"), To: netip.MustParseAddr("fd00::2"), Protocol: udp, Port: 53}
)

const (
	certain   = "certain"
	uncertain = "uncertain"
	not       = "not"
)

// TestConditions drops packets that meet a condition, in the form in which a person may write it.
func TestConditions(t *testing.T) {
	for _, c := range []struct {
		rule       string
		four, six  string // whether the packets meet it
		definition string
	}{
		{rule: "ip saddr 10.1.0.1", four: certain, six: not},
		{rule: "ip saddr != 10.1.0.1", four: not, six: not},
		{rule: "ip saddr 10.1.0.0/16", four: certain, six: not},
		{rule: "ip saddr 10.0.0.0/15", four: certain, six: not},
		{rule: "ip saddr 10.2.0.0/15", four: not, six: not},
		{rule: "ip saddr 10.1.0.1-10.1.0.9", four: certain, six: not},
		{rule: "ip daddr { 10.1.0.2, 10.1.0.7 }", four: certain, six: not},
		{rule: "ip daddr { 10.1.0.3-10.1.0.7 }", four: not, six: not},
		{rule: "ip daddr != { 10.1.0.3-10.1.0.7 }", four: certain, six: not},
		{rule: "ip6 daddr { fd00::/64 }", four: not, six: certain},
		{rule: "ip6 daddr { fd00::/16, fd01::/48 } udp dport 53", four: not, six: certain},
		{rule: "tcp dport 80", four: certain, six: not},
		{rule: "tcp dport 81-90", four: not, six: not},
		{rule: "tcp dport != 81-90", four: certain, six: not},
		{rule: "th dport { 53, 443 }", four: not, six: certain},
		{rule: "meta l4proto { tcp, sctp }", four: certain, six: not},
		{rule: "meta nfproto ipv6", four: not, six: certain},
		{rule: "meta protocol ip", four: certain, six: not},
		{rule: "ip protocol tcp", four: certain, six: not},
		{rule: "tcp flags syn", four: certain, six: not},
		{rule: "tcp flags & (fin|syn|rst|ack) == ack", four: not, six: not},
		{rule: "ct state new", four: certain, six: certain},
		{rule: "ct state established,related", four: not, six: not},
		{rule: "ct state != established", four: certain, six: certain},
		{rule: "ip saddr . tcp dport { 10.1.0.1 . 80 }", four: certain, six: not},
		{rule: "ip saddr . tcp dport { 10.1.0.1 . 81 }", four: not, six: not},
		{rule: "ip saddr . tcp dport { 10.1.0.1-10.1.0.9 . 80 }", four: certain, six: not},
		{rule: "ip saddr . tcp dport { 10.1.0.1-10.1.0.9 . 81-90 }", four: not, six: not},
		{rule: "ip saddr @few", definition: "set few { type ipv4_addr; elements = { 10.1.0.1 }; }", four: certain, six: not},
		{rule: "ip saddr @none", definition: "set none { type ipv4_addr; }", four: not, six: not},
		{rule: "counter ip saddr 10.1.0.1 log prefix \"x\"", four: certain, six: not},
		{rule: "counter name cnt", definition: "counter cnt { }", four: certain, six: certain},

		{rule: "ip saddr != 10.1.0.5-10.1.0.9", four: certain, six: not},
		{rule: "ip saddr & 255.0.255.0 == 10.0.0.0", four: certain, six: not},
		{rule: "ip saddr & 255.0.255.0 == 10.0.1.0", four: not, six: not},
		{rule: "tcp dport >= 80", four: certain, six: not},
		{rule: "tcp dport > 80", four: not, six: not},
		{rule: "tcp dport <= 80", four: certain, six: not},
		{rule: "th dport < 80", four: not, six: certain},
		{rule: "tcp dport != { 80, 443 }", four: not, six: not},
		{rule: "tcp dport { 70-90, 443 }", four: certain, six: not},
		{rule: "meta l4proto != tcp", four: not, six: certain},
		{rule: "ip6 nexthdr udp", four: not, six: certain},
		{rule: "icmp type echo-request", four: not, six: not},
		{rule: "ip daddr . tcp sport { 10.1.0.9 . 80 }", four: not, six: not},
		{rule: "ct state { new, untracked }", four: certain, six: certain},
		{rule: "ct state != { established, related }", four: certain, six: certain},
		{rule: "meta mark set ip saddr map { 10.1.0.1 : 1 }", four: certain, six: not},
		{rule: "meta mark set ip saddr map { 10.9.9.9 : 1 }", four: not, six: not},
		{rule: "ct mark set 1", four: certain, six: certain},

		// The package does not guess: neither an unknown property of the packet nor an expression that it does
		// not know.
		{rule: "tcp sport < 80", four: uncertain, six: not},
		{rule: "tcp sport 1024-2000", four: uncertain, six: not},
		{rule: "tcp sport != { 80, 443 }", four: uncertain, six: not},
		{rule: "ip daddr . tcp sport { 10.1.0.2 . 80 }", four: uncertain, six: not},
		{rule: "ct mark 1", four: uncertain, six: uncertain},
		{rule: "ct direction original", four: uncertain, six: uncertain},
		{rule: "meta mark != 1", four: uncertain, six: uncertain},
		{rule: "ip6 hoplimit 255", four: not, six: uncertain},
		{rule: "meta mark set tcp sport map { 80 : 1 }", four: uncertain, six: not},
		{rule: "meta mark set ip saddr map { 10.1.0.1 : 1 } meta mark 1", four: uncertain, six: not},
		{rule: "tcp sport 1024", four: uncertain, six: not},
		{rule: "iifname \"eth0\"", four: uncertain, six: uncertain},
		{rule: "meta mark 1 ip saddr 10.9.9.9", four: not, six: not},
		{rule: "meta mark 1 ip saddr 10.1.0.1", four: uncertain, six: not},
		{rule: "limit rate 1/second", four: uncertain, six: uncertain},
		{rule: "limit rate 1/second ip saddr 10.9.9.9", four: not, six: not},
		{rule: "fib saddr type local", four: uncertain, six: uncertain},
		{rule: "ip saddr . tcp sport { 10.1.0.1-10.1.0.9 . 80 }", four: uncertain, six: not},
		{rule: "ip saddr @others", definition: "set others { type ipv4_addr; elements = { * }; }", four: uncertain, six: not},
		{rule: "ip ttl 64", four: uncertain, six: not},
	} {
		if !readable(t, c.definition) {
			continue
		}
		follow := load(t, c.definition+"\nchain base { type filter hook forward priority 0; "+c.rule+" drop; }")
		for p, want := range map[*Packet]string{&packet4: c.four, &packet6: c.six} {
			got := map[Fate]string{Accepted: not, Dropped: certain, Accepted | Dropped: uncertain}[follow(*p).Fate]
			if got != want {
				t.Errorf("%s: the packet from %s meets it: %s, want %s", c.rule, p.From, got, want)
			}
		}
	}
}

// TestVerdicts follows jumps, and the policy of the chain.
func TestVerdicts(t *testing.T) {
	for name, c := range map[string]struct {
		chains string
		want   Fate
	}{
		"empty":              {"chain base { type filter hook forward priority 0; }", Accepted},
		"policy":             {"chain base { type filter hook forward priority 0; policy drop; }", Dropped},
		"reject":             {"chain base { type filter hook forward priority 0; reject; }", Dropped},
		"jump comes back":    {"chain a { return; drop; } chain base { type filter hook forward priority 0; jump a; drop; }", Dropped},
		"goto does not":      {"chain a { } chain base { type filter hook forward priority 0; goto a; drop; }", Accepted},
		"goto in a jump":     {"chain a { } chain b { goto a; drop; } chain base { type filter hook forward priority 0; jump b; accept; }", Accepted},
		"return of a base":   {"chain base { type filter hook forward priority 0; policy drop; return; accept; }", Dropped},
		"continue":           {"chain base { type filter hook forward priority 0; continue; drop; }", Dropped},
		"map":                {"chain a { drop; } map m { type ipv4_addr : verdict; elements = { 10.1.0.1 : goto a }; } chain base { type filter hook forward priority 0; ip saddr vmap @m; }", Dropped},
		"not in the map":     {"chain a { drop; } map m { type ipv4_addr : verdict; elements = { 10.1.0.9 : goto a }; } chain base { type filter hook forward priority 0; ip saddr vmap @m; }", Accepted},
		"inline map":         {"chain base { type filter hook forward priority 0; tcp dport vmap { 80 : drop, 90 : accept }; }", Dropped},
		"map of what is not": {"chain base { type filter hook forward priority 0; tcp sport vmap { 80 : drop, 90 : accept }; }", Accepted | Dropped},
		"perhaps accepted":   {"chain base { type filter hook forward priority 0; tcp sport 1 accept; drop; }", Accepted | Dropped},
		"either way dropped": {"chain base { type filter hook forward priority 0; tcp sport 1 drop; drop; }", Dropped},
		"perhaps a jump":     {"chain a { drop; } chain base { type filter hook forward priority 0; tcp sport 1 jump a; drop; }", Dropped},
		"perhaps returns":    {"chain a { tcp sport 1 return; accept; } chain base { type filter hook forward priority 0; policy drop; jump a; }", Accepted | Dropped},
		"change elsewhere":   {"chain base { type filter hook forward priority 0; ip saddr 10.9.9.9 ip ttl set 1; drop; }", Dropped},
		"changes the packet": {"chain base { type filter hook forward priority 0; ip ttl set 1; drop; }", Accepted | Dropped},
		"goto in a map":      {"chain a { } chain base { type filter hook forward priority 0; policy drop; ip saddr vmap { 10.1.0.1 : goto a }; accept; }", Dropped},
		"jump in a map":      {"chain a { } chain base { type filter hook forward priority 0; policy drop; ip saddr vmap { 10.1.0.1 : jump a }; accept; }", Accepted},
		"perhaps a goto":     {"chain a { } chain base { type filter hook forward priority 0; policy drop; tcp sport 1 goto a; accept; }", Accepted | Dropped},
		"either way goes on": {"chain a { } chain base { type filter hook forward priority 0; tcp sport 1 jump a; drop; }", Dropped},
		"notrack":            {"chain base { type filter hook prerouting priority -300; notrack; drop; }", Dropped},
		"sets a mark":        {"chain base { type filter hook forward priority 0; meta mark set 1; drop; }", Dropped},
	} {
		if got := through(t, c.chains, packet4).Fate; got != c.want {
			t.Errorf("%s: got %d, want %d", name, got, c.want)
		}
	}
}

// TestQueue follows a packet to a rule that gives it to a program, which decides. The kernel of the test
// may have no queues.
func TestQueue(t *testing.T) {
	queue := nft.Expr{Name: "immediate", Attrs: nft.Attrs{
		{Type: unix.NFTA_IMMEDIATE_DREG, Data: []byte{0, 0, 0, unix.NFT_REG_VERDICT}},
		{Type: unix.NFTA_IMMEDIATE_DATA, Data: nested(t, unix.NFTA_DATA_VERDICT, nested(t, unix.NFTA_VERDICT_CODE, []byte{0, 1, 0, 3}))},
	}}
	table := &nft.Table{Rules: map[string][]nft.Rule{"base": {{Chain: "base", Exprs: []nft.Expr{queue}}}}}
	path, err := Through(table, nft.Chain{Name: "base"}, packet4)
	if err != nil || path.Fate != Accepted|Dropped || path.Steps[0].Not == "" {
		t.Errorf("got %+v, %v", path, err)
	}
}

// TestNotUnderstood says what was not understood of a rule.
func TestNotUnderstood(t *testing.T) {
	for _, c := range []struct {
		rule, not string
		does      Fate
	}{
		{"limit rate 1/second drop", "its condition limit", Dropped},
		{"limit rate 1/second counter", "its condition limit", 0},
		{"ip ttl set 1 drop", `its expression "payload"`, Accepted | Dropped},
		{"ip saddr @others drop", "its set others", Dropped},
		{"tcp sport vmap { 80 : drop }", "its map __map0", Accepted | Dropped},
		{"tcp sport 80 drop", "", Dropped},
		{"ip saddr vmap { 10.1.0.1 : drop }", "", Dropped},
	} {
		if !readable(t, "{ * }") {
			break
		}
		path := through(t, "set others { type ipv4_addr; elements = { * }; } chain base { type filter hook forward priority 0; "+c.rule+"; }", packet4)
		if len(path.Steps) != 1 || path.Steps[0].Not != c.not || path.Steps[0].Does != c.does {
			t.Errorf("%s: got %+v, want %q", c.rule, path.Steps, c.not)
		}
	}
}

// TestForeign follows a packet to expressions that nft does not write.
func TestForeign(t *testing.T) {
	named := func(expr, name string) nft.Expr {
		return nft.Expr{Name: expr, Attrs: nft.Attrs{{Type: unix.NFTA_MATCH_NAME, Data: append([]byte(name), 0)}}}
	}
	drop := nft.Expr{Name: "immediate", Attrs: nft.Attrs{
		{Type: unix.NFTA_IMMEDIATE_DREG, Data: []byte{0, 0, 0, unix.NFT_REG_VERDICT}},
		{Type: unix.NFTA_IMMEDIATE_DATA, Data: nested(t, unix.NFTA_DATA_VERDICT, nested(t, unix.NFTA_VERDICT_CODE, []byte{0, 0, 0, 0}))},
	}}
	for _, c := range []struct {
		expr nft.Expr
		want Fate
	}{
		{named("match", "comment"), Dropped},
		{named("match", "tcp"), Accepted | Dropped},
		{named("target", "MARK"), Accepted | Dropped},
		{nft.Expr{Name: "flow_offload"}, Dropped},
		{nft.Expr{Name: "queue"}, Accepted | Dropped},
		{nft.Expr{Name: "wormhole"}, Accepted | Dropped},
	} {
		table := &nft.Table{Rules: map[string][]nft.Rule{"base": {{Chain: "base", Exprs: []nft.Expr{c.expr, drop}}}}}
		path, err := Through(table, nft.Chain{Name: "base"}, packet4)
		if err != nil || path.Fate != c.want || c.want == Dropped && !path.Steps[0].Sure {
			t.Errorf("%s: got %+v, %v", c.expr, path, err)
		}
	}
}

// TestTooDeep follows a packet through chains that call each other deeper than the kernel lets them, and
// to a set that no longer exists.
func TestTooDeep(t *testing.T) {
	jump := nested(t, unix.NFTA_VERDICT_CODE, []byte{0xff, 0xff, 0xff, 0xfd})
	jump = append(jump, nested(t, unix.NFTA_VERDICT_CHAIN, []byte("base\x00"))...)
	loop := nft.Expr{Name: "immediate", Attrs: nft.Attrs{
		{Type: unix.NFTA_IMMEDIATE_DREG, Data: []byte{0, 0, 0, unix.NFT_REG_VERDICT}},
		{Type: unix.NFTA_IMMEDIATE_DATA, Data: nested(t, unix.NFTA_DATA_VERDICT, jump)},
	}}
	table := &nft.Table{Rules: map[string][]nft.Rule{"base": {{Chain: "base", Exprs: []nft.Expr{loop}}}}}
	path, err := Through(table, nft.Chain{Name: "base"}, packet4)
	if err != nil || path.Fate != Accepted|Dropped || len(path.Steps) != 17 || path.Steps[16].To != "base" {
		t.Errorf("got %+v, %v", path, err)
	}
	gone := nft.Expr{Name: "lookup", Attrs: nft.Attrs{{Type: unix.NFTA_LOOKUP_SET, Data: []byte("s\x00")}, {Type: unix.NFTA_LOOKUP_SREG, Data: []byte{0, 0, 0, 1}}}}
	table = &nft.Table{Family: nftables.TableFamilyINet, Name: "gone", Rules: map[string][]nft.Rule{"base": {{Chain: "base", Exprs: []nft.Expr{gone}}}}}
	if _, err := Through(table, nft.Chain{Name: "base"}, packet4); err == nil || !strings.Contains(err.Error(), "read set s") {
		t.Errorf("a set that is gone: %v", err)
	}
}

// TestSteps names the rules that a packet meets.
func TestSteps(t *testing.T) {
	path := through(t, `chain a { udp dport 53 drop; tcp dport 80 counter; tcp sport 9 accept comment "maybe"; drop comment "end"; }
		chain base { type filter hook forward priority 0; ip saddr 10.9.9.9 drop; jump a comment "to a"; }`, packet4)
	var got []string
	for _, s := range path.Steps {
		text := s.String()
		if c := s.Comment(); c != "" {
			text += ", " + c
		}
		if !s.Sure {
			text += ", perhaps"
		}
		got = append(got, text)
	}
	want := []string{"rule 2 of chain base, to a", "rule 2 of chain a", "rule 3 of chain a, maybe, perhaps", "rule 4 of chain a, end, perhaps"}
	if path.Fate != Accepted|Dropped || !slices.Equal(got, want) {
		t.Errorf("got %d, %q", path.Fate, got)
	}
}

// noPods is an address that is not in the set pods.
type noPods struct{}

func (noPods) Lacks(set string) bool     { return set == "pods" }
func (noPods) Differs(a netip.Addr) bool { return a == packet4.From }

// TestLess follows packets of which less is known. Rules that look at the unknown properties have an
// uncertain result.
func TestLess(t *testing.T) {
	table := `set pods { type ipv4_addr; elements = { 10.1.0.1 }; }
		set most { type ipv4_addr; flags interval; elements = { 0.0.0.0-9.255.255.255, 11.0.0.0-255.255.255.255 }; }
		set every { type ipv4_addr; flags interval; elements = { 0.0.0.0/0 }; }
		chain base { type filter hook forward priority 0; RULE; }`
	for _, c := range []struct {
		rule string
		p    Packet
		want Fate
	}{
		{"ip saddr @pods drop", Packet{To: packet4.To, Outside: noPods{}}, Accepted},
		{"ip saddr @pods drop", Packet{To: packet4.To}, Accepted | Dropped},
		{"ip saddr @most drop", Packet{To: packet4.To, Outside: noPods{}}, Accepted | Dropped},
		{"ip saddr @every drop", Packet{To: packet4.To, Outside: noPods{}}, Dropped},
		{"ip saddr 10.1.0.1 drop", Packet{To: packet4.To, Outside: noPods{}}, Accepted},
		{"ip saddr != 10.1.0.1 drop", Packet{To: packet4.To, Outside: noPods{}}, Dropped},
		{"ip saddr 10.1.0.1 drop", Packet{To: packet4.To}, Accepted | Dropped},
		{"ip saddr 192.0.2.1 drop", Packet{To: packet4.To, Outside: noPods{}}, Accepted | Dropped},
		{"ip saddr 10.0.0.0/8 drop", Packet{To: packet4.To, Outside: noPods{}}, Accepted | Dropped},
		{"ip daddr 10.1.0.1 drop", Packet{From: packet4.From, Outside: noPods{}}, Accepted},
		{"ip saddr @pods drop", Packet{From: packet4.From, To: packet4.To, Without: []string{"pods"}}, Accepted},
		{"ip saddr != @pods drop", Packet{From: packet4.From, To: packet4.To, Without: []string{"pods"}}, Dropped},
		{"ip saddr @pods drop", Packet{From: packet4.From, To: packet4.To, Without: []string{"most"}}, Dropped},
		{`drop comment "mine"; ip saddr 10.1.0.1 drop`, Packet{To: packet4.To, Ignores: func(r nft.Rule) bool { return r.Comment() == "mine" }}, Accepted | Dropped},
		{"ip6 hoplimit 255 drop", Packet{V6: true, To: packet6.To, Hops: 255}, Dropped},
		{"ip6 hoplimit 255 drop", Packet{V6: true, To: packet6.To, Hops: 64}, Accepted},
		{"ip daddr 10.1.0.2 drop", Packet{To: packet4.To}, Dropped},
		{"tcp dport 80 drop", Packet{To: packet4.To, Protocol: tcp}, Accepted | Dropped},
		{"tcp dport 80 drop", Packet{To: packet4.To, Protocol: udp}, Accepted},
		{"tcp dport 80 drop", Packet{To: packet4.To}, Accepted | Dropped},
		{"udp dport 80 drop; meta l4proto tcp drop", Packet{To: packet4.To, Protocol: tcp}, Dropped},
		{"icmp type echo-request drop", Packet{To: packet4.To, Protocol: icmp, Port: 8}, Dropped},
		{"icmp type echo-request drop", Packet{To: packet4.To, Protocol: icmp, Port: 3}, Accepted},
		{"icmp type echo-request drop", Packet{To: packet4.To, Protocol: tcp, Port: 8}, Accepted},
	} {
		if got := through(t, strings.Replace(table, "RULE", c.rule, 1), c.p).Fate; got != c.want {
			t.Errorf("%s, %+v: got %d, want %d", c.rule, c.p, got, c.want)
		}
	}
}
