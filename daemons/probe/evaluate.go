// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/trace"
)

// evaluate asks the kernel and the policies what would become of the packet, without one.
func (t *tracer) evaluate() {
	at := t.source()
	r, err := at.route(t.To.Addr, 0, netip.Addr{})
	src := t.From.Addr
	switch {
	case err != nil:
		f := t.routeFinding(at, err, 0, src, t.To.Addr)
		t.expect(at.name, f.Text, &f)
	default:
		if !src.IsValid() {
			src = nl.AddrOf(r.Src)
		}
		t.expect(at.name, "route to "+t.To.Addr.String()+at.way(r), t.down(at, r.LinkIndex))
		if in := t.hostLink(r.LinkIndex); in != 0 && !t.Translated {
			t.evaluateHost(in, src)
		}
	}
	if p := t.Policies; p != nil {
		var f *trace.Finding
		if !p.Allowed {
			f = &trace.Finding{Where: t.host().name, Cause: trace.Policy, Text: p.Text}
		}
		t.expect(t.host().name, "network policies: "+p.Text, f)
	}
	if at := t.target(); at != nil && at != t.source() && src.IsValid() {
		t.evaluateBack(at, src)
	}
}

// evaluateHost asks whether the host would forward what comes in by a link.
func (t *tracer) evaluateHost(in int, src netip.Addr) {
	h := t.host()
	r, err := h.route(t.To.Addr, in, src)
	if err == nil && r.Type != unix.RTN_LOCAL { // for IPv6 the lookup does not ask whether the host forwards
		if on, ferr := h.forwards(t.To.Addr, in); ferr == nil && !on {
			err = unix.EHOSTUNREACH
		}
	}
	if err != nil {
		f := t.routeFinding(h, err, in, src, t.To.Addr)
		t.expect(h.name, f.Text, &f)
		return
	}
	t.expect(h.name, fmt.Sprintf("what comes in by %s goes to %s%s", h.link(in), t.To.Addr, h.way(r)), t.down(h, r.LinkIndex))
}

// evaluateBack asks whether a target has a route for its answer.
func (t *tracer) evaluateBack(at *place, src netip.Addr) {
	r, err := at.route(src, 0, netip.Addr{})
	if err != nil {
		f := t.routeFinding(at, err, 0, t.To.Addr, src)
		f.Cause, f.Text = trace.NoWayBack, "the answer has no way back: "+f.Text
		t.expect(at.name, f.Text, &f)
		return
	}
	t.expect(at.name, "the answer goes back to "+src.String()+at.way(r), t.down(at, r.LinkIndex))
}

// expect adds a step of the evaluation. The first one that fails is what it expects.
func (t *tracer) expect(where, text string, f *trace.Finding) {
	t.report.Evaluation = append(t.report.Evaluation, trace.Expectation{Where: where, Text: text, OK: f == nil})
	if f != nil && t.expected == nil {
		t.expected = f
	}
}

// sourceAddress returns the address from which the source would send.
func (t *tracer) sourceAddress() (netip.Addr, error) {
	if t.From.Addr.IsValid() {
		return t.From.Addr, nil
	}
	r, err := t.source().route(t.To.Addr, 0, netip.Addr{})
	if err != nil {
		return netip.Addr{}, err
	}
	return nl.AddrOf(r.Src), nil
}

// route asks the kernel for the route to an address, of what comes in by a link or, if that is 0, of what the namespace sends.
func (p *place) route(to netip.Addr, in int, from netip.Addr) (netlink.Route, error) {
	o := &netlink.RouteGetOptions{IifIndex: in}
	if from.IsValid() {
		o.SrcAddr = from.AsSlice()
	}
	list, err := p.conn.RouteGetWithOptions(to.AsSlice(), o)
	if err == nil && len(list) == 0 {
		err = unix.ENETUNREACH
	}
	if err != nil {
		return netlink.Route{}, err
	}
	switch list[0].Type { // for IPv6 the kernel returns such a route
	case unix.RTN_BLACKHOLE:
		err = unix.EINVAL
	case unix.RTN_UNREACHABLE:
		err = unix.EHOSTUNREACH
	case unix.RTN_PROHIBIT:
		err = unix.EACCES
	}
	return list[0], err
}

// way says where a route leads.
func (p *place) way(r netlink.Route) string {
	switch {
	case r.Type == unix.RTN_LOCAL:
		return " in the namespace itself"
	case r.Gw != nil:
		return fmt.Sprintf(" by %s, to the gateway %s", p.link(r.LinkIndex), r.Gw)
	}
	return " by " + p.link(r.LinkIndex)
}

// hostLink returns the host's link that receives what the source sends by a link, or 0 if it is not known.
func (t *tracer) hostLink(index int) int {
	if !t.From.Container() {
		return 0
	}
	return t.hostEnd(t.source(), index)
}

// hostEnd returns the host's link that gets what a container sends by its veth: the bridge whose port is the other end, or the other end itself.
func (t *tracer) hostEnd(p *place, index int) int {
	port := t.port(p, index)
	switch {
	case port == nil:
		return 0
	case port.Attrs().MasterIndex != 0:
		return port.Attrs().MasterIndex
	}
	return port.Attrs().Index
}

// port returns the host's end of a container's veth, or nil.
func (t *tracer) port(p *place, index int) netlink.Link {
	l, err := p.conn.LinkAt(index)
	if err != nil || l.Type() != "veth" {
		return nil
	}
	port, err := t.host().conn.LinkAt(l.Attrs().ParentIndex)
	if err != nil || port.Type() != "veth" || port.Attrs().ParentIndex != index {
		return nil // it is in another namespace
	}
	return port
}

// down returns a finding if a link is down, or its other end is.
func (t *tracer) down(p *place, index int) *trace.Finding {
	l, err := p.conn.LinkAt(index)
	if err != nil {
		return nil
	}
	at := l.Attrs()
	switch {
	case at.RawFlags&unix.IFF_UP == 0:
		return finding(p.name, trace.LinkDown, at.Name+" is down", p.inside("ip link set "+at.Name+" up"))
	case at.OperState != netlink.OperLowerLayerDown && at.OperState != netlink.OperDown:
		return nil
	}
	f := finding(p.name, trace.LinkDown, at.Name+" has no carrier: its other end is down", "set its other end up")
	if l.Type() == "bridge" {
		f.Text, f.Fix = at.Name+" has no carrier: no port of it is up", "see bridge link; patchbay check, patchbay repair"
	}
	if port := t.port(p, index); p != t.host() && port != nil {
		f.Text = fmt.Sprintf("%s has no carrier: its other end %s on the host is down", at.Name, port.Attrs().Name)
		f.Fix = "ip link set " + port.Attrs().Name + " up"
	}
	return f
}

// routeFinding explains an error of route.
func (t *tracer) routeFinding(p *place, err error, in int, from, to netip.Addr) trace.Finding {
	f := trace.Finding{Where: p.name, Cause: trace.BadRoute}
	ask := fmt.Sprintf("ip route get %s", to)
	if in != 0 {
		ask += fmt.Sprintf(" from %s iif %s", from, p.link(in))
	}
	f.Fix = "look at " + p.inside("ip rule") + " and " + p.inside("ip route") + "; " + p.inside(ask) + " repeats the question"
	switch forwards, ferr := p.forwards(to, in); {
	case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EINVAL) && p.strict(in, from): // EINVAL since Linux 6.13
		f.Cause = trace.ReversePath
		f.Text = fmt.Sprintf("the reverse path filter drops packets of %s from %s: the route back to it is another", from, p.link(in))
		f.Fix = p.inside(fmt.Sprintf("sysctl -w net.ipv4.conf.%s.rp_filter=2", sysctlName(p.link(in)))) + " (and net.ipv4.conf.all.rp_filter must not be 1), or mend the route to " + from.String()
	case in != 0 && ferr == nil && !forwards:
		f.Cause, f.Text, f.Fix = trace.Forwarding, fmt.Sprintf("forwarding is off for packets from %s", p.link(in)), p.inside("sysctl -w "+forwardingKey(to, p.link(in)))
	case errors.Is(err, unix.ENETUNREACH):
		f.Cause, f.Text, f.Fix = trace.NoRoute, fmt.Sprintf("there is no route to %s", to), "add a default route, or a route to the address: "+p.inside("ip route")
		if gateways := t.gateways(p, to); len(gateways) > 0 {
			f.Fix = p.inside("ip route add default via "+gateways[0].String()) + `; for all containers of the network, "isDefaultGateway": true or "routes" in its configuration`
		}
		if l := t.downLink(p); l != nil {
			return *l
		}
	case errors.Is(err, unix.EHOSTUNREACH):
		f.Text = fmt.Sprintf("a route says that %s is unreachable", to)
	case errors.Is(err, unix.EACCES):
		f.Text = fmt.Sprintf("a route or routing rule prohibits %s", to)
	case errors.Is(err, unix.EINVAL):
		f.Text = fmt.Sprintf("a route throws packets to %s away (blackhole), or the source %s is not valid there", to, from)
	default:
		f.Cause, f.Text = trace.Unknown, fmt.Sprintf("the kernel has no route to %s: %v", to, err)
	}
	return f
}

// strict reports whether the reverse path filter of a link drops what comes from an address (ip-sysctl.rst): the higher value of the link's
// and of all counts.
func (p *place) strict(in int, from netip.Addr) bool {
	if in == 0 || !from.Is4() {
		return false
	}
	mode := max(p.sysctl("net/ipv4/conf/all/rp_filter"), p.sysctl("net/ipv4/conf/"+p.link(in)+"/rp_filter"))
	r, err := p.route(from, 0, netip.Addr{})
	return mode != 0 && err != nil || mode == 1 && r.LinkIndex != in
}

// gateways returns the addresses that the host has on the links of a container, of the family of an address.
func (t *tracer) gateways(p *place, like netip.Addr) (list []netip.Addr) {
	links, err := p.conn.LinkList()
	if err != nil || p == t.host() {
		return nil
	}
	for _, l := range links {
		list = append(list, t.hostAddrs(t.hostEnd(p, l.Attrs().Index), like)...)
	}
	return list
}

// hostAddrs returns the addresses of a link of the host, of the family of an address.
func (t *tracer) hostAddrs(index int, like netip.Addr) (list []netip.Addr) {
	if index == 0 {
		return nil
	}
	addrs, err := t.host().conn.Addrs(index)
	if err != nil {
		return nil
	}
	for _, a := range addrs {
		if own := a.Prefix.Addr().Unmap(); own.Is4() == like.Is4() && !own.IsLinkLocalUnicast() {
			list = append(list, own)
		}
	}
	return list
}

// downLink returns a finding if a link of a container is down: its routes are gone then.
func (t *tracer) downLink(p *place) *trace.Finding {
	links, err := p.conn.LinkList()
	if err != nil || p == t.host() {
		return nil
	}
	for _, l := range links {
		if l.Attrs().RawFlags&(unix.IFF_UP|unix.IFF_LOOPBACK) == 0 && (l.Type() == "veth" || l.Type() == "macvlan" || l.Type() == "ipvlan") {
			return finding(p.name, trace.LinkDown, l.Attrs().Name+" is down, so its routes are gone", p.inside("ip link set "+l.Attrs().Name+" up")+", and add the routes again")
		}
	}
	return nil
}

// forwards reports whether the namespace forwards packets that come in by a link.
func (p *place) forwards(to netip.Addr, in int) (bool, error) {
	if to.Is6() {
		return p.conn.Forwarding(unix.AF_INET6)
	}
	return p.conn.Forwards(unix.AF_INET, in)
}

func forwardingKey(to netip.Addr, in string) string {
	if to.Is6() {
		return "net.ipv6.conf.all.forwarding=1"
	}
	return "net.ipv4.ip_forward=1, or net.ipv4.conf." + sysctlName(in) + ".forwarding=1"
}

// sysctlName returns a link's name as sysctl(8) takes it: a dot is a slash.
func sysctlName(link string) string { return strings.ReplaceAll(link, ".", "/") }
