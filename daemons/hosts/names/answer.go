// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package names

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"

	"github.com/miekg/dns"
)

// ttl is how many seconds a client may cache a positive answer. When a container has stopped,
// another one may soon get its address, so ttl is short.
const ttl = 5

// handler answers the queries that arrive at one network's address.
type handler struct {
	*Server
	network string
}

// ServeDNS answers or forwards one query.
func (h handler) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	_, udp := w.RemoteAddr().(*net.UDPAddr)
	from := addrOf(w.RemoteAddr())
	reply := h.reply(q, from, udp)
	if reply != nil {
		w.WriteMsg(reply) //nolint:errcheck // if this fails, the client asks again
	}
}

// reply returns the reply to a query, or nil if none is to be sent.
func (h handler) reply(q *dns.Msg, from netip.Addr, udp bool) *dns.Msg {
	reply, ours := h.answer(q, from)
	if !ours {
		reply = h.forward.ask(h.Server, q, h.client(h.network, from, udp), from, udp)
	}
	if reply == nil {
		return nil
	}
	reply.Id, reply.Response = q.Id, true
	if udp {
		reply.Truncate(sizeOf(q))
	}
	return reply
}

// sizeOf returns how large a datagram the client accepts, in bytes.
func sizeOf(q *dns.Msg) int {
	size := dns.MinMsgSize
	if opt := q.IsEdns0(); opt != nil {
		size = max(size, int(opt.UDPSize()))
	}
	return min(size, maxUDP)
}

// answer answers a query from the View alone. If the query must be forwarded, ours is false.
func (h handler) answer(q *dns.Msg, from netip.Addr) (reply *dns.Msg, ours bool) {
	reply = new(dns.Msg)
	if len(q.Question) != 1 || q.Opcode != dns.OpcodeQuery {
		rcode := dns.RcodeFormatError
		if q.Opcode != dns.OpcodeQuery {
			rcode = dns.RcodeNotImplemented
		}
		return reply.SetRcode(q, rcode), true
	}
	if q.IsTsig() != nil {
		return reply.SetRcode(q, dns.RcodeNotAuth), true // we share no key with any client
	}
	reply.SetReply(q)
	reply.RecursionAvailable = true
	question := q.Question[0]
	if opt := q.IsEdns0(); opt != nil {
		reply.SetEdns0(maxUDP, opt.Do())
		if opt.Version() != 0 {
			reply.Rcode = dns.RcodeBadVers
			return reply, true
		}
	}
	transfer := question.Qtype == dns.TypeAXFR || question.Qtype == dns.TypeIXFR
	if !h.View.Contains(h.network, from) || question.Qclass != dns.ClassINET || transfer {
		reply.Rcode = dns.RcodeRefused
		return reply, true
	}
	records, exists, ours := h.lookup(question)
	if !ours {
		return nil, false
	}
	reply.Authoritative = true
	if !exists {
		reply.Rcode = dns.RcodeNameError
	}
	reply.Answer = records
	return reply, true
}

// lookup finds the records for a question. If the name exists, exists is true. If the query must not
// be forwarded, ours is true.
func (h handler) lookup(q dns.Question) (records []dns.RR, exists, ours bool) {
	asked := strings.ToLower(strings.TrimSuffix(q.Name, "."))
	if addr, ok := reverse(asked); ok {
		names := h.View.Names(h.network, addr)
		if len(names) == 0 {
			return nil, false, h.View.Contains(h.network, addr)
		}
		return h.pointers(q, names), true, true
	}
	if addrs, ok := h.View.Addrs(h.network, asked); ok && asked != "" {
		return addresses(q, addrs), true, true
	}
	name, within, whole := h.cut(asked)
	addrs, exists := h.View.Addrs(h.network, name)
	switch {
	case name != "" && (exists || whole):
		return addresses(q, addrs), exists, true
	case within && name == "" && !ofZone(q.Qtype): // the name of the network itself
		return nil, true, true
	case asked == "" || strings.Contains(asked, ".") || ofZone(q.Qtype):
		return nil, false, false
	}
	return nil, false, true
}

// ofZone reports whether a resolver sends a query of this type for a top-level domain, and
// never for a container.
func ofZone(qtype uint16) bool {
	return qtype == dns.TypeNS || qtype == dns.TypeSOA || qtype == dns.TypeDS || qtype == dns.TypeDNSKEY
}

// cut removes the suffix of the network from a name. If there was a suffix, within is true. If
// the suffix included the domain, whole is true; no other server has names below that. A network
// may have the name of a public top-level domain. So without the domain, the server must not deny
// the names below the network's name.
func (h handler) cut(asked string) (name string, within, whole bool) {
	network := strings.ToLower(h.network)
	if d := strings.ToLower(strings.Trim(h.Domain, ".")); d != "" {
		if name, ok := below(asked, network+"."+d); ok {
			return name, true, true
		}
	}
	name, within = below(asked, network)
	return name, within, false
}

// below returns the part of a name before a suffix.
func below(asked, suffix string) (name string, ok bool) {
	if asked == suffix {
		return "", true
	}
	return strings.CutSuffix(asked, "."+suffix)
}

// maxRecords limits the records of an answer. If there are more, the answer has a random
// selection. With the longest names, such an answer still fits into a message.
const maxRecords = 200

// addresses returns the records of the wanted family, in random order.
func addresses(q dns.Question, addrs []netip.Addr) (records []dns.RR) {
	head := dns.RR_Header{Name: q.Name, Class: dns.ClassINET, Ttl: ttl}
	for _, a := range addrs {
		a = a.Unmap()
		switch {
		case a.Is4() && (q.Qtype == dns.TypeA || q.Qtype == dns.TypeANY):
			head.Rrtype = dns.TypeA
			records = append(records, &dns.A{Hdr: head, A: a.AsSlice()})
		case a.Is6() && (q.Qtype == dns.TypeAAAA || q.Qtype == dns.TypeANY):
			head.Rrtype = dns.TypeAAAA
			records = append(records, &dns.AAAA{Hdr: head, AAAA: a.WithZone("").AsSlice()})
		}
	}
	rand.Shuffle(len(records), func(i, j int) { records[i], records[j] = records[j], records[i] })
	return records[:min(len(records), maxRecords)]
}

// pointers returns PTR records. Their names have the form NAME.NETWORK, which a client can
// query.
func (h handler) pointers(q dns.Question, names []string) (records []dns.RR) {
	if q.Qtype != dns.TypePTR && q.Qtype != dns.TypeANY {
		return nil
	}
	suffix := "." + h.network
	if d := strings.Trim(h.Domain, "."); d != "" {
		suffix += "." + d
	}
	for _, name := range names[:min(len(names), maxRecords/2)] { // each record has two names
		to := dns.Fqdn(name + suffix)
		if _, ok := dns.IsDomainName(to); !ok {
			continue // no query can contain this name
		}
		records = append(records, &dns.PTR{
			Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypePTR, Class: dns.ClassINET, Ttl: ttl}, Ptr: to,
		})
	}
	return records
}

// reverse parses the address in a name such as 5.2.40.10.in-addr.arpa, or in the IPv6 form.
func reverse(asked string) (addr netip.Addr, ok bool) {
	if rest, found := strings.CutSuffix(asked, ".in-addr.arpa"); found {
		parts := strings.Split(rest, ".")
		if len(parts) != 4 {
			return addr, false
		}
		addr, err := netip.ParseAddr(parts[3] + "." + parts[2] + "." + parts[1] + "." + parts[0])
		return addr, err == nil
	}
	rest, found := strings.CutSuffix(asked, ".ip6.arpa")
	if !found || len(rest) != 63 {
		return addr, false
	}
	var b strings.Builder
	for i := 62; i >= 0; i -= 2 {
		if i < 62 && rest[i+1] != '.' {
			return addr, false
		}
		b.WriteByte(rest[i])
		if i%8 == 0 && i > 0 {
			b.WriteByte(':')
		}
	}
	addr, err := netip.ParseAddr(b.String())
	return addr, err == nil && addr.Is6() && addr.Zone() == ""
}

func addrOf(a net.Addr) netip.Addr {
	switch a := a.(type) {
	case *net.UDPAddr:
		return a.AddrPort().Addr().Unmap().WithZone("")
	case *net.TCPAddr:
		return a.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}
