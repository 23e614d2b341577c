// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

// two results, as bridge and a network of an IPAM plugin give them.
const (
	frontResult = `{"cniVersion":"1.1.0","interfaces":[{"name":"br0"},{"name":"eth0"},{"name":"eth0","mac":"02:00:00:00:00:01","sandbox":"/run/netns/c"}],
		"ips":[{"interface":2,"address":"10.1.0.2/24","gateway":"10.1.0.1"},{"interface":0,"address":"10.1.0.9/24"},{"interface":2,"address":"fd00::2/64"}],
		"routes":[{"dst":"0.0.0.0/0"}],"dns":{"nameservers":["10.1.0.1"],"search":["a"]}}`
	backResult = `{"cniVersion":"1.0.0","interfaces":[{"name":"eth1","sandbox":"/run/netns/c"}],
		"ips":[{"interface":0,"address":"10.2.0.2/24"},{"interface":7,"address":"10.2.0.3/24"}],
		"routes":[{"dst":"0.0.0.0/0","gw":"10.2.0.1"},{"dst":"::/0","gw":"fe80::1"}],
		"dns":{"nameservers":["10.1.0.1","10.2.0.1"],"domain":"example","search":["a","b"],"options":["ndots:2"]}}`
)

func mustResult(t *testing.T, text string) *Result {
	t.Helper()
	r, err := ParseResult([]byte(text), "")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func addresses(list []IPConfig) string {
	var words []string
	for _, ip := range list {
		words = append(words, ip.Address.String())
	}
	return strings.Join(words, " ")
}

func TestInside(t *testing.T) {
	r := mustResult(t, frontResult)
	if in := r.Inside("eth0"); in == nil || in.Mac != "02:00:00:00:00:01" {
		t.Errorf("eth0 is %+v, not the one in the sandbox", in)
	}
	if in := r.Inside("br0"); in != nil {
		t.Errorf("the host's br0 is inside: %+v", in)
	}
	if got := addresses(r.IPsOf("eth0")); got != "10.1.0.2/24 fd00::2/64" {
		t.Errorf("addresses are %s", got)
	}
	old := mustResult(t, `{"cniVersion":"0.2.0","ip4":{"ip":"10.3.0.2/24"}}`)
	if got := addresses(old.IPsOf("eth5")); got != "10.3.0.2/24" {
		t.Errorf("a result without interfaces: %s", got)
	}
}

func TestGateway(t *testing.T) {
	for _, c := range []struct {
		about, result, v4, v6 string
	}{
		{"the address's, if the route has none", frontResult, "10.1.0.1", ""},
		{"the route's", backResult, "10.2.0.1", "fe80::1"},
		{"no default route", `{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"}]}`, "", ""},
		{"on the link", `{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"}],"routes":[{"dst":"0.0.0.0/0","scope":253}]}`, "", ""},
	} {
		r := mustResult(t, c.result)
		for v4, want := range map[bool]string{true: c.v4, false: c.v6} {
			got := ""
			if gw := r.Gateway(v4); gw.IsValid() {
				got = gw.String()
			}
			if got != want {
				t.Errorf("%s, IPv4 %v: %q, want %q", c.about, v4, got, want)
			}
		}
	}
}

func TestMerge(t *testing.T) {
	front, back := mustResult(t, frontResult), mustResult(t, backResult)
	m := Merge(front, back)
	if err := m.Validate(); err != nil {
		t.Error(err)
	}
	if got := addresses(m.IPsOf("eth1")); got != "10.2.0.2/24 10.2.0.3/24" {
		t.Errorf("addresses of eth1 are %s", got)
	}
	if gw := m.Gateway(true); gw != netip.MustParseAddr("10.1.0.1") {
		t.Errorf("the gateway is %s, not that of the first network", gw)
	}
	want := DNS{Nameservers: []string{"10.1.0.1", "10.2.0.1"}, Domain: "example", Search: []string{"a", "b"}, Options: []string{"ndots:2"}}
	if !reflect.DeepEqual(m.DNS, want) {
		t.Errorf("DNS is %+v", m.DNS)
	}
	if *back.IPs[0].Interface != 0 || len(front.DNS.Nameservers) != 1 {
		t.Error("Merge changed its arguments")
	}
	if empty := Merge(); empty.CNIVersion != Current || len(empty.IPs) != 0 {
		t.Errorf("no results: %+v", empty)
	}
}

func TestResolvConf(t *testing.T) {
	dns := DNS{Nameservers: []string{"192.0.2.1", "2001:db8::1"}, Domain: "example.org", Options: []string{"ndots:2"}}
	if got := dns.ResolvConf(); got != "search example.org\nnameserver 192.0.2.1\nnameserver 2001:db8::1\noptions ndots:2\n" {
		t.Errorf("%q", got)
	}
	dns.Search = []string{"a", "b"}
	if got := dns.ResolvConf(); !strings.HasPrefix(got, "search a b\n") {
		t.Errorf("%q", got)
	}
}
