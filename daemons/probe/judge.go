// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/trace"
)

// judge fills the report with what was seen of the probe.
func (t *tracer) judge(s *shot) {
	r := t.report
	r.Steps = t.steps(s)
	for _, v := range s.views {
		if v.trace.Lost {
			r.Note("%s told more than could be read: steps may be missing", v.at.name)
		}
	}
	back := s.views[0].of
	switch f := t.ends(s, probe); {
	case s.refused != nil:
		r.End(t.refused(s))
	case back[answer].came("input") && back[answer].reset:
		r.Verdict, r.Finding = trace.Refused, t.noListener()
	case back[answer].came("input"):
		r.Verdict = trace.Arrives
	case f != nil:
		r.End(t.withError(s, *f))
	case s.views[t.last()].of[failed].seen() && t.target() != nil:
		r.Verdict, r.Finding = trace.Refused, t.noListener()
	case back[failed].came("input"):
		r.End(t.told(s))
	default:
		t.unanswered(s)
	}
}

// last returns the index of the last place.
func (t *tracer) last() int { return len(t.places) - 1 }

// unanswered says why no answer came to a packet that arrived, or that left the node.
func (t *tracer) unanswered(s *shot) {
	r, sent := t.report, s.views[t.last()].of[answer]
	f := t.ends(s, answer)
	switch {
	case t.target() == nil && !sent.seen():
		r.Verdict, r.Finding = trace.Left, t.noAnswer(s)
		if r.Finding != nil && r.Finding.Cause == trace.Masquerade {
			r.Verdict = trace.Ends
		}
	case sent.seen() && f != nil:
		f.Text = "the packet arrives, but its answer does not come back: " + f.Text
		r.End(*f)
	case t.Protocol == l4.UDP:
		r.Verdict = trace.Arrives
		r.Note("nothing answered: a program need not answer such a datagram")
	default:
		r.End(t.silent(s))
	}
}

// ends returns where packets of one kind end, or nil if they come to the end of their way.
func (t *tracer) ends(s *shot, k kind) *trace.Finding {
	order := slices.Clone(s.views)
	if k != probe {
		slices.Reverse(order)
	}
	if t.hairpin && k == probe {
		return t.hairpinEnds(s)
	}
	reach := -1
	for i, v := range order {
		if v.of[k].seen() {
			reach = i
		}
	}
	if reach < 0 {
		return nil
	}
	return t.endsAt(s, order, reach, k)
}

// endsAt explains why packets came to no place behind order[reach].
func (t *tracer) endsAt(s *shot, order []*view, reach int, k kind) *trace.Finding {
	v := order[reach]
	final := reach == len(order)-1 && (k != probe || t.target() != nil)
	switch of := &v.of[k]; {
	case of.drop != nil:
		return t.dropped(v, k)
	case !of.last.end:
		return t.inHook(v, k)
	case final && of.came("input"):
		return nil
	case of.departed() && reach < len(order)-1:
		return t.between(s, v, order[reach+1], k)
	case of.departed() && k == probe && t.target() == nil:
		return nil
	}
	return t.inRouting(s, v, k, final)
}

// hairpinEnds returns where a packet ends that the host shall send back to its source.
func (t *tracer) hairpinEnds(s *shot) *trace.Finding {
	own, host := s.views[0], s.views[1]
	of, at := &own.of[probe], &host.of[probe]
	switch {
	case of.came("input"):
		return nil
	case of.last.hook == "prerouting" && of.last.end && of.drop == nil && of.src == s.src:
		return finding(own.at.name, trace.Hairpin, fmt.Sprintf("the packet comes back to its sender with the sender's own address %s as source, which the kernel refuses", of.src),
			"masquerade it: Patchbay does that for ports that it publishes (patchbay repair); for another program's ports, its hairpin option")
	case of.last.hook != "postrouting":
		return t.endsAt(s, []*view{own}, 0, probe)
	case at.drop == nil && at.last.hook == "prerouting" && at.last.end:
		if port := t.port(own.at, of.out); port != nil {
			return finding(host.at.name, trace.Hairpin, fmt.Sprintf("the bridge sends no frame back to the port from which it came (br_netfilter has translated it there): hairpin mode of %s is off", port.Attrs().Name),
				fmt.Sprintf(`bridge link set dev %s hairpin on; for all containers of the network, "hairpinMode": true in its configuration`, port.Attrs().Name))
		}
	}
	return t.endsAt(s, []*view{own, host, own}, 1, probe)
}

// inHook explains why packets came to the begin of a hook, not to its end, and no rule of nftables says so.
func (t *tracer) inHook(v *view, k kind) *trace.Finding {
	hook := v.of[k].last.hook
	if count, most := v.at.sysctl("net/netfilter/nf_conntrack_count"), v.at.sysctl("net/netfilter/nf_conntrack_max"); most > 0 && count >= most && (hook == "prerouting" || hook == "output") {
		return finding(v.at.name, trace.Conntrack, fmt.Sprintf("the table of connections is full (%d of %d)", count, most), v.at.inside(fmt.Sprintf("sysctl -w net.netfilter.nf_conntrack_max=%d", 2*most)))
	}
	chain := map[string]string{"prerouting": "PREROUTING", "input": "INPUT", "forward": "FORWARD", "output": "OUTPUT", "postrouting": "POSTROUTING"}[hook]
	return finding(v.at.name, trace.Legacy, fmt.Sprintf("at the hook %s something other than nftables drops the packet: rules of iptables-legacy, IPVS or a program", hook),
		fmt.Sprintf("look at the counters: %s; and move that firewall to iptables-nft", v.at.inside("iptables-legacy -vnL "+chain)))
}

// inRouting explains why packets ended between two hooks: the kernel's routing decides there.
func (t *tracer) inRouting(s *shot, v *view, k kind, final bool) *trace.Finding {
	of := &v.of[k]
	r, err := v.at.route(of.dst, of.in, of.src)
	switch {
	case err != nil:
		f := t.routeFinding(v.at, err, of.in, of.src, of.dst)
		return &f
	case of.last.hook == "input":
		return finding(v.at.name, trace.NotHere, fmt.Sprintf("%s itself takes the packet to %s, and does not forward it: the address is one of its own", v.at.name, of.dst), "see who else has the address: patchbay doctor, "+v.at.inside("ip address"))
	case final && r.Type != unix.RTN_LOCAL:
		return finding(v.at.name, trace.NotHere, fmt.Sprintf("%s does not have the address %s", v.at.name, of.dst), v.at.inside("ip address")+"; patchbay check says what it should have")
	case of.in != 0 && v.mtu(r.LinkIndex) < s.length():
		return t.tooLong(v.at, r.LinkIndex)
	case of.in != 0 && of.dst.Is6():
		if on, err := v.at.forwards(of.dst, of.in); err == nil && !on {
			f := t.routeFinding(v.at, unix.EHOSTUNREACH, of.in, of.src, of.dst)
			return &f
		}
	}
	return finding(v.at.name, trace.Unknown, fmt.Sprintf("the kernel drops the packet after the hook %s, and its routing does not say why", of.last.hook), "patchbay doctor; the kernel's counters: "+v.at.inside("nstat -az"))
}

// between explains why packets left one place, and did not come to the next one.
func (t *tracer) between(s *shot, v, next *view, k kind) *trace.Finding {
	of := &v.of[k]
	hop := v.at.hop(of.out, of.dst)
	f := t.otherEnd(v.at, next.at, of.out, of.dst)
	if f == nil {
		f = t.down(v.at, of.out)
	}
	if f == nil {
		f = t.neighbour(v.at, next.at, of, hop)
	}
	if f != nil {
		return f
	}
	if s.pad > 0 {
		return t.tooLong(v.at, of.out)
	}
	by := ""
	if of.out != 0 {
		by = " by " + v.at.link(of.out)
	}
	return finding(v.at.name, trace.Unknown, fmt.Sprintf("the packet leaves %s%s to %s, and does not come to %s", v.at.name, by, hop, next.at.name),
		"see the counters of the links ("+v.at.inside("ip -s link")+"), filters of tc, and the bridge: bridge link")
}

// hop returns to which neighbour on a link packets to an address go.
func (p *place) hop(out int, to netip.Addr) netip.Addr {
	r, err := p.route(to, 0, netip.Addr{})
	if err != nil || r.Gw == nil || r.LinkIndex != out {
		return to
	}
	return nl.AddrOf(r.Gw)
}

// unresolved reports whether the namespace has asked for the Ethernet address of a neighbour, and got no answer.
func (p *place) unresolved(link int, hop netip.Addr) bool {
	n, ok := p.neigh(link, hop)
	return ok && n.State&(unix.NUD_FAILED|unix.NUD_INCOMPLETE) != 0
}

// neighbour explains with the neighbour table why packets do not come to the next place.
func (t *tracer) neighbour(at, next *place, of *sight, hop netip.Addr) *trace.Finding {
	if of.out == 0 {
		return nil // a bridge has forwarded them
	}
	if at.unresolved(of.out, hop) {
		return t.unanswering(at, next, of, hop)
	}
	n, ok := at.neigh(of.out, hop)
	if l := next.linkOf(hop); ok && l != nil && l.Attrs().HardwareAddr.String() != n.HardwareAddr.String() {
		mac := l.Attrs().HardwareAddr
		return finding(at.name, trace.Duplicate, fmt.Sprintf("%s takes %s for %s, but %s has %s there: another machine or container has the same address, or the entry is old", at.name, n.HardwareAddr, hop, next.name, mac),
			at.inside(fmt.Sprintf("ip neigh del %s dev %s", hop, at.link(of.out)))+"; if it comes back, find who else has the address")
	}
	return nil
}

// unanswering explains why nobody answers for an address on a link.
func (t *tracer) unanswering(at, next *place, of *sight, hop netip.Addr) *trace.Finding {
	if f := t.wrongGateway(at, next, of.out, hop); f != nil {
		return f
	}
	if next == t.host() { // it answers only those whose packets it would take
		if in := t.hostEnd(at, of.out); in != 0 {
			if _, err := next.route(hop, in, of.src); err != nil {
				f := t.routeFinding(next, err, in, of.src, hop)
				return &f
			}
		}
	}
	if next != t.host() && next.linkOf(hop) == nil {
		return finding(next.name, trace.NotHere, fmt.Sprintf("%s does not have the address %s", next.name, hop), "patchbay check says what it should have; attach it again")
	}
	return noNeighbour(at, of.out, hop)
}

func noNeighbour(at *place, link int, hop netip.Addr) *trace.Finding {
	return finding(at.name, trace.NoNeighbour, fmt.Sprintf("nobody on %s answers for %s (ARP or neighbour discovery)", at.link(link), hop),
		"see that what shall have the address is there, and its link up: patchbay check, patchbay doctor; "+at.inside("ip neigh show dev "+at.link(link)))
}

// wrongGateway reports that a container's gateway is no address of the host.
func (t *tracer) wrongGateway(at, next *place, out int, hop netip.Addr) *trace.Finding {
	if at == t.host() || next != t.host() {
		return nil
	}
	in := t.hostEnd(at, out)
	if in == 0 || t.host().linkOf(hop) != nil {
		return nil
	}
	f := finding(at.name, trace.WrongGateway, fmt.Sprintf("its gateway %s is no address of %s on the host", hop, t.host().link(in)), "give "+t.host().link(in)+" an address")
	if own := t.hostAddrs(in, hop); len(own) > 0 {
		f.Text += fmt.Sprintf(", which has %s", own[0])
		f.Fix = at.inside(fmt.Sprintf("ip route replace default via %s", own[0]))
	}
	return f
}

// otherEnd explains by the veth between a container and the host why packets to an address do not come through.
func (t *tracer) otherEnd(at, next *place, out int, dst netip.Addr) *trace.Finding {
	inside, link := at, netlink.Link(nil)
	if at == t.host() {
		inside, link = next, next.linkOf(dst)
	} else if l, err := at.conn.LinkAt(out); err == nil {
		link = l
	}
	if link == nil || inside == t.host() || link.Type() != "veth" {
		return nil
	}
	index := link.Attrs().Index
	if f := t.down(inside, index); f != nil {
		return f
	}
	port := t.port(inside, index)
	if port != nil && port.Attrs().MasterIndex == 0 && inside != at && t.bridge(out) {
		return finding(t.host().name, trace.LinkDown, port.Attrs().Name+" is no port of "+t.host().link(out), fmt.Sprintf("ip link set %s master %s", port.Attrs().Name, t.host().link(out)))
	}
	if master := t.hostEnd(inside, index); master != 0 {
		return t.down(t.host(), master)
	}
	return nil
}

func (t *tracer) bridge(index int) bool {
	l, err := t.host().conn.LinkAt(index)
	return err == nil && l.Type() == "bridge"
}

// withError adds to a finding what another machine, or the kernel itself, says about the packet.
func (t *tracer) withError(s *shot, f trace.Finding) trace.Finding {
	if of := s.views[0].of[failed]; of.came("input") && f.Cause == trace.Unknown {
		f.Cause, f.Text = trace.Elsewhere, f.Text+"; "+of.src.String()+" says: "+icmpText(of.src.Is6(), of.icmp)
	}
	return f
}

// told explains an ICMP error about a packet that left the node.
func (t *tracer) told(s *shot) trace.Finding {
	of := s.views[0].of[failed]
	return *finding(of.src.String(), trace.Elsewhere, fmt.Sprintf("%s says: %s", of.src, icmpText(of.src.Is6(), of.icmp)), "mend it there; a firewall that rejects, or a route that is missing, answers so")
}

// refused explains why the source's own kernel refused to send.
func (t *tracer) refused(s *shot) trace.Finding {
	at := t.source()
	if v := s.views[0]; errors.Is(s.refused, unix.EPERM) {
		if v.of[probe].drop != nil {
			return *t.dropped(v, probe)
		}
		return *finding(at.name, trace.OwnFirewall, "its own firewall drops what it sends (OUTPUT)", at.inside("nft list ruleset")+", "+at.inside("iptables-legacy -vnL OUTPUT"))
	}
	if errors.Is(s.refused, unix.EMSGSIZE) {
		return *t.tooLong(at, 0)
	}
	return t.routeFinding(at, s.refused, 0, s.src, s.dst)
}

// noAnswer explains why no answer came from outside.
func (t *tracer) noAnswer(s *shot) *trace.Finding {
	v := s.views[t.last()]
	of := &v.of[probe]
	if !of.seen() {
		v = s.views[0]
		of = &v.of[probe]
	}
	link := v.at.link(of.out)
	if f := t.down(v.at, of.out); f != nil {
		return f
	}
	if hop := v.at.hop(of.out, of.dst); v.at.unresolved(of.out, hop) {
		return noNeighbour(v.at, of.out, hop)
	}
	if t.From.Container() && of.src == s.src && s.src.IsPrivate() && !v.at.onLink(of.out, s.src) {
		return finding(v.at.name, trace.Masquerade, fmt.Sprintf("the packet leaves by %s with the container's own address %s, and no answer comes: the machines there have no route to it", link, s.src),
			`"ipMasq": true in the network's configuration and attach again, or a route to the container's subnet on the machines there`)
	}
	if t.Mute {
		return nil
	}
	return finding("outside", trace.Silent, fmt.Sprintf("the packet leaves this node by %s as %s, and no answer comes", link, of.src), "ask there: "+s.dst.String()+" does not answer, or something on the way drops it")
}

// noListener explains a refusal.
func (t *tracer) noListener() *trace.Finding {
	f := finding("the target", trace.NoListener, fmt.Sprintf("the packet arrives, and is refused: nothing listens on %s of %s", t.report.Port, t.To.Addr), "start the program that shall listen there")
	at := t.target()
	if at == nil {
		return f
	}
	f.Where = at.name
	if only := at.listeners(t.Protocol, t.Port); len(only) > 0 {
		f.Text += ", only on " + strings.Join(only, ", ")
		f.Fix = "let the program listen on all addresses (0.0.0.0 or ::)"
	}
	return f
}

// silent explains why a target that has the packet did not answer.
func (t *tracer) silent(s *shot) trace.Finding {
	at := t.target()
	if at == nil {
		at = t.host()
	}
	src := s.views[t.last()].of[probe].src
	if _, err := at.route(src, 0, netip.Addr{}); err != nil && src.IsValid() {
		f := t.routeFinding(at, err, 0, s.dst, src)
		f.Cause, f.Text = trace.NoWayBack, "the packet arrives, but the answer has no way back: "+f.Text
		return f
	}
	return *finding(at.name, trace.Silent, "the packet arrives, and nothing answers", "the program's queue may be full, or a filter at its socket drops: "+at.inside("ss -ltn")+", "+at.inside("nstat -az"))
}
