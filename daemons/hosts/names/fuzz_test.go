// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package names

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// FuzzReply sends any query. Each reply is well formed, answers the question, and fits.
func FuzzReply(f *testing.F) {
	for _, name := range []string{"web", "many", "four.blue", "5.1.40.10.in-addr.arpa", "x.ip6.arpa", "."} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypePTR, dns.TypeANY} {
			q := query(name, qtype)
			q.SetEdns0(1400, true)
			b, err := q.Pack()
			must(f, err)
			f.Add(b)
		}
	}
	h := handler{&Server{View: testBook(), Domain: "example"}, "blue"}
	from := netip.MustParseAddr("10.40.1.9")
	f.Fuzz(func(t *testing.T, b []byte) {
		q := new(dns.Msg)
		if q.Unpack(b) != nil {
			return // the library answers those
		}
		reply, ours := h.answer(q, from)
		if !ours {
			return
		}
		reply.Truncate(sizeOf(q))
		out, err := reply.Pack()
		if err != nil {
			t.Fatalf("pack %v: %v", reply, err)
		}
		if len(out) > maxUDP && len(q.Question) == 1 {
			t.Fatalf("%d bytes", len(out))
		}
		parsed := new(dns.Msg)
		if err := parsed.Unpack(out); err != nil || parsed.Id != q.Id || !parsed.Response {
			t.Fatalf("%v: %v", parsed, err)
		}
		if len(q.Question) == 1 && q.Opcode == dns.OpcodeQuery && (len(parsed.Question) != 1 || parsed.Question[0] != q.Question[0]) {
			t.Fatalf("%v is answered with %v", q, parsed)
		}
	})
}

func FuzzReverse(f *testing.F) {
	f.Add("5.1.40.10.in-addr.arpa")
	f.Add("7.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.1.0.0.0.0.4.d.f.ip6.arpa")
	f.Fuzz(func(t *testing.T, name string) {
		addr, ok := reverse(name)
		if !ok || name != strings.ToLower(name) {
			return // look gets names in lower case
		}
		back, err := dns.ReverseAddr(addr.String())
		if err != nil || back != name+"." {
			// An IPv6 address that maps an IPv4 address has two names.
			if !addr.Is4In6() {
				t.Fatalf("%q is %s, which is %q, %v", name, addr, back, err)
			}
		}
	})
}
