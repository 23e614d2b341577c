// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The test compiles the conditions in the reference's tests and documentation, and all supported
// conditions of nft and iptables. It compares the rules as nft prints them.
func TestConditionsGolden(t *testing.T) {
	c := open(t)
	var all []*Conditions
	for i, v4 := range [][]string{
		{"!", "-d", "192.0.2.0/24"}, // README of portmap
		{"-s", "10.0.0.0/8", "!", "-i", "eth0"},
		{"-i", "veth+", "-p", "udp", "-m", "udp", "--dport", "53:60"},
		{"ip", "saddr", "!=", "10.0.0.0/8"},
		{"ip saddr 10.1.2.3 ip daddr ! 192.0.2.0/25"},
		{"meta", "iifname", "==", "\"eth0\"", "meta l4proto tcp"},
		{"iifname != wan*", "tcp dport != 1000-2000", "th sport 80"},
		{"ip daddr 0.0.0.0/0"},
		{"-p", "132", "--sport", "7"},
		nil,
		{"ip", "daddr", "!=", "{ 127.0.0.0/8, 198.19.254.254 }"},
		{"iifname", "{", "eth0,", "wan*", "}", "tcp dport {80,1000-2000,}"},
		{"ip saddr 10.0.0.1-10.0.0.9", "ip daddr != 192.0.2.1-192.0.2.8", "meta l4proto != { tcp, udp }"},
		{"-s", "10.0.0.0/8,192.0.2.1"},
		{"-p", "tcp", "-m", "multiport", "--dports", "80,443,8000:8080"},
		{"-p tcp -m multiport ! --destination-ports 22,25", "!", "--sport", ":1023"},
		{"-p udp --match multiport --sports 5000:,53 -m multiport --ports 7"},
		{"-m", "iprange", "--src-range", "10.0.0.1-10.0.0.9", "-m iprange ! --dst-range 192.0.2.1-192.0.2.8"},
		{"-m multiport ! --ports 7,9"},
	} {
		v6 := []string{"ip6", "daddr", "2001:db8::/61"}
		if i%2 == 0 {
			v6 = []string{"!", "-s", "2001:db8::1"}
		}
		cond, err := NewConditions("net"+string(rune('a'+i)), v4, v6)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, cond)
		c.Queue(cond.Ensure())
		c.Add(Port(Published{Protocol: 6, Port: uint16(i + 1), To: netip.MustParseAddrPort("10.1.0.5:80")}, cond, "x"))
	}
	commit(t, c)
	got := nftTool(t, "list", "ruleset")
	goldenOfNFT(t, "conditions.golden", got[strings.Index(got, "\tchain cond"):])
	reload(t, c, got)
	for _, cond := range all {
		if lost, err := cond.Lost(c); err != nil || len(lost) > 0 {
			t.Errorf("%q: loaded again by nft, CHECK says %q, %v", cond.V4, lost, err)
		}
	}
}

func TestConditionsRefused(t *testing.T) {
	for _, tokens := range []string{
		"ip", "ip saddr", "ip saddr x", "ip saddr 10.0.0.0/33", "ip saddr fd00::/8", "ip6 saddr fd00::/8", "ip ttl 1",
		"ip saddr @set", "! -s 10.0.0.1,10.0.0.2", "-i eth0,eth1", "-s",
		"ip saddr { }", "ip saddr { , }", "ip saddr { 10.0.0.1", "ip saddr { 10.0.0.1 10.0.0.2 }", "ip saddr { 10.0.0.1, fd00::1 }", "ip saddr }",
		"ip saddr 10.0.0.9-10.0.0.1", "ip saddr 10.0.0.1-", "ip saddr 10.0.0.1-fd00::1", "ip saddr { 10.0.0.1, { 10.0.0.2 } }", "-s fd00::1", "saddr 10.0.0.1",
		"-m conntrack --ctstate NEW", "-m multiport --dports http", "-m multiport --dports 80,", "--dport 80,443", "-m iprange --src-range 10.0.0.0/8",
		"-m iprange --src-range 10.0.0.9-10.0.0.1", "-m iprange --dst-range fd00::1-fd00::2", "--src-range 10.0.0.1-10.0.0.2,10.0.0.4-10.0.0.5",
		"-m tcp --dport http", "--dport 70000", "--dport 9-8", "tcp flags syn", "tcp dport {80-70}",
		"meta mark 1", "meta", "ct state new", "-o eth0", "-i", "-i averyveryverylongname", "iifname {a/b}", "meta l4proto icmp6",
		"-p 0", "-p 256", "!", "! !", "drop", "ip saddr 10.0.0.1 accept", "counter", "fe80::1%eth0", "-s fe80::1%eth0",
	} {
		_, err := NewConditions("n", strings.Fields(tokens), nil)
		if !errors.Is(err, errCondition) || !strings.Contains(err.Error(), "conditionsV4: ") {
			t.Errorf("%q: %v", tokens, err)
		}
	}
	if c, err := NewConditions("n", nil, nil); c != nil || err != nil {
		t.Errorf("no conditions: %v, %v", c, err)
	}
	if _, err := NewConditions("n", nil, []string{"ip saddr 10.0.0.1"}); err == nil || !strings.Contains(err.Error(), "conditionsV6: ") {
		t.Errorf("IPv4 in conditionsV6: %v", err)
	}
}

// The first attachment creates the chain, once, and the last removes it.
func TestConditionsComeAndGo(t *testing.T) {
	c := open(t)
	c.Add(network()...)
	commit(t, c)
	before := nftTool(t, "list", "ruleset")
	cond, err := NewConditions("pods", []string{"-s", "10.0.0.0/8"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	e := Port(Published{Protocol: 6, Port: 80, To: netip.MustParseAddrPort("10.1.0.5:80")}, cond, Comment(testOwner, "pods", "c", "eth0"))
	for range 2 {
		c.Queue(cond.Ensure())
		c.Queue(cond.Ensure())
		c.Add(e)
		commit(t, c)
	}
	mustGet(t, c, e)
	if got := nftTool(t, "list", "ruleset"); strings.Count(got, "jump cond_") != 1 || strings.Count(got, "ip saddr 10.0.0.0/8") != 2 {
		t.Errorf("not one chain:\n%s", got)
	}
	c.Remove(e)
	c.Queue(cond.Drop())
	commit(t, c)
	if got := nftTool(t, "list", "ruleset"); got != before {
		t.Errorf("left behind:\n%s", got)
	}
	c.Queue(cond.Drop())
	commit(t, c)
}

func FuzzConditions(f *testing.F) {
	f.Add("ip saddr 10.0.0.0/8", false)
	f.Add("! -s fd00::/8 -i eth0 -p tcp --dport 80:90", true)
	f.Add("meta iifname != \"x*\" th dport 1-2", false)
	f.Fuzz(func(t *testing.T, tokens string, v6 bool) {
		out, err := parseConditions([]string{tokens}, v6)
		if err != nil && (out != nil || !errors.Is(err, errCondition) && !errors.Is(err, errTooMany)) {
			t.Errorf("%q: %v, %v", tokens, out, err)
		}
		for _, alternative := range out {
			if slices.Contains(alternative, nil) {
				t.Errorf("%q has an empty expression", tokens)
			}
		}
	})
}

// Too many combinations are refused, because a packet meets one rule after the other.
func TestConditionsCombine(t *testing.T) {
	set := func(n int) string {
		var list []string
		for i := range n {
			list = append(list, strconv.Itoa(i+1))
		}
		return "{" + strings.Join(list, ",") + "}"
	}
	c, err := NewConditions("n", []string{"tcp dport " + set(16), "th sport " + set(32)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if rules, err := c.rules(); err != nil || len(rules) != 2*512+2 {
		t.Errorf("%d rules, %v", len(rules), err)
	}
	if _, err := NewConditions("n", []string{"tcp dport " + set(16), "th sport " + set(33)}, nil); err == nil || !strings.Contains(err.Error(), "more than 512 combinations") {
		t.Errorf("528 combinations: %v", err)
	}
}
