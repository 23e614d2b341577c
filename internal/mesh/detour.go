// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// A direct route to a peer on the same link may fail: many clouds, and switches with port security, drop
// packets with addresses that they have not given to the host. So Probe sends an echo request from this
// host's address in its block to the peer's, on the link. If an answer comes only through the tunnel, the
// tunnel carries everything to this peer: a detour (docs/adr/0072).

// direct is a direct route to test.
type direct struct {
	link           string
	source, target netip.Addr // addresses of this host and of the peer, each in a block of its own
	tunnel         tunnelEnd
}

// standbyMetric is the metric of a direct route that is not used. The tests use this route, because they
// are sent through its link. It is larger than that of our other routes.
const standbyMetric = 2 * ipv6Metric

// choose returns the direct route to a block, or the one through the tunnel if the network drops packets
// of containers. It needs an address of each host in its block, and a tunnel.
func (c *compiler) choose(p Peer, block netip.Prefix, straight Route) Route {
	target, source := p.firstOf(block), c.self.sourceOf(block)
	if p.Transport == Routes || !target.IsValid() || !source.IsValid() {
		return straight
	}
	around, err := c.tunnel(p, block)
	if err != nil || around.Via != NextHop(p.vtep()) { // there is no tunnel, or its end does not answer
		return straight
	}
	if !c.tested[target] {
		c.tested[target] = true
		c.state.Directs = append(c.state.Directs, direct{straight.Link, source, target, tunnelEnd{around.Link, around.Via}})
	}
	if !c.facts.Detours[target] {
		return straight
	}
	if !slices.Contains(c.state.Detoured, p.label()) {
		c.state.Detoured = append(c.state.Detoured, p.label())
	}
	straight.Metric = standbyMetric
	c.state.Routes = append(c.state.Routes, straight)
	return around
}

// firstOf returns the address that a peer has in its first block of a family. A block of one address has
// none.
func (p Peer) firstOf(family netip.Prefix) (a netip.Addr) {
	i := slices.IndexFunc(p.Blocks, func(b netip.Prefix) bool { return b.Addr().Is4() == family.Addr().Is4() })
	if i < 0 {
		return a
	}
	return wireAddr(p.Blocks[i])
}

// detour says which peers are reached through the tunnel although they are on the same link.
func (s State) detour() error {
	if len(s.Detoured) == 0 {
		return nil
	}
	const most = 10
	names := slices.Clone(s.Detoured[:min(most, len(s.Detoured))])
	if more := len(s.Detoured) - most; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return fmt.Errorf("the network between the hosts drops packets with addresses of containers on direct routes, so the VXLAN tunnel carries them to %s: "+
		"let the network pass them (Amazon: switch the source/destination check off; OpenStack: allowed address pairs; Azure: IP forwarding and routes), "+
		"or set the transport vxlan", strings.Join(names, ", "))
}

// detours returns the targets of direct routes that need a detour. The first call finds those of an earlier
// agent by their standby routes.
func (m *Mesh) detours(protocol uint8) (map[netip.Addr]bool, error) {
	f := &m.paths
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.detours == nil {
		have, err := m.ourRoutes(protocol)
		if err != nil {
			return nil, err
		}
		f.detours = make(map[netip.Addr]bool)
		for i := range have {
			if have[i].Priority == standbyMetric {
				f.detours[nl.PrefixOf(have[i].Dst).Addr()] = true
			}
		}
	}
	return maps.Clone(f.detours), nil
}

// noteDirects stores for each tested target whether it needs a detour, and reports whether a result has
// changed.
func (f *found) noteDirects(results map[netip.Addr]bool) (changed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for target, detour := range results {
		changed = changed || f.detours[target] != detour
		f.detours[target] = detour
	}
	return changed
}

// directTests tests direct routes. It repeats a test without a result, because the peer's agent may start
// later than this one.
type directTests struct {
	conn    *nl.Conn
	warn    func(error)
	echo    *echo
	changed func()

	open  bool          // a direct route has no result
	pause time.Duration // before the next test of these
	last  resident.Failure
}

// soonest is the first pause, which grows up to probeEvery.
const soonest = 5 * time.Second

// run tests all direct routes, or those without a result.
func (t *directTests) run(ctx context.Context, f *found, all bool) {
	if all {
		t.pause = 0
	}
	detours, err := t.echo.testDirects(ctx, t.conn, f.untested(all))
	if t.last.Changed(err) && err != nil {
		t.warn(err)
	}
	if ctx.Err() == nil && f.noteDirects(detours) {
		t.changed()
	}
	t.open = len(f.untested(false)) > 0
}

// again returns the timer of the next test of direct routes without a result.
func (t *directTests) again() <-chan time.Time {
	if !t.open {
		return nil
	}
	t.pause = min(max(soonest, 2*t.pause), probeEvery)
	return time.After(t.pause)
}

// untested returns the direct routes to test.
func (f *found) untested(all bool) (list []direct) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range f.directs {
		if _, known := f.detours[d.target]; all || !known {
			list = append(list, d)
		}
	}
	return list
}

// tried is a direct route with the requests that test it.
type tried struct {
	direct
	straight, around *probe
}

// testDirects tests direct routes. If no packet arrives by either route, the target has no result: the peer
// may be down, or its agent too old for the test. If the tunnel carries packets, the direct route is tried
// again: the peer's agent may have started after the first try.
func (e *echo) testDirects(ctx context.Context, conn *nl.Conn, list []direct) (detours map[netip.Addr]bool, err error) {
	sockets, err := openBound(list)
	defer sockets.close()
	all := sockets.tests(conn, list)
	straight, around := func(t tried) *probe { return t.straight }, func(t tried) *probe { return t.around }
	silent := e.silent(ctx, all, straight)
	e.silent(ctx, silent, around)
	e.silent(ctx, slices.DeleteFunc(silent, func(t tried) bool { return !t.around.small }), straight)
	detours = make(map[netip.Addr]bool)
	for _, t := range all {
		if (t.straight.small || t.around.small) && ctx.Err() == nil {
			detours[t.target] = !t.straight.small
		}
	}
	return detours, err
}

// silent sends one of the requests of each test, and returns the tests without an answer.
func (e *echo) silent(ctx context.Context, list []tried, which func(tried) *probe) []tried {
	var probes []*probe
	for _, t := range list {
		probes = append(probes, which(t))
	}
	e.askAll(ctx, probes)
	return slices.DeleteFunc(slices.Clone(list), func(t tried) bool { return which(t).small })
}

// tests returns the tests of those routes for which there are a socket and a tunnel.
func (s boundSockets) tests(conn *nl.Conn, list []direct) (tests []tried) {
	for _, d := range list {
		fd, ok := s[bound{d.link, d.source}]
		link, err := conn.Link(d.tunnel.device)
		if !ok || err != nil {
			continue
		}
		// The first address of a subnet is an anycast address if a bridge has the subnet (RFC 4291
		// section 2.6.1), so the answer may come from another address.
		tests = append(tests, tried{
			d, &probe{to: d.target, fd: fd, loose: true, uplink: smallProbe, low: smallProbe, high: smallProbe},
			&probe{to: d.tunnel.hop, zone: link.Attrs().Index, uplink: smallProbe, low: smallProbe, high: smallProbe},
		})
	}
	return tests
}

// bound is what a socket for tests is bound to.
type bound struct {
	link   string
	source netip.Addr
}

type boundSockets map[bound]int

// openBound opens a socket for each link and source. Packets sent through it use a route through this link,
// even if another link has a better one. Answers arrive at the other sockets, from any link.
func openBound(list []direct) (sockets boundSockets, err error) {
	sockets = make(boundSockets)
	for _, d := range list {
		at := bound{d.link, d.source}
		if _, done := sockets[at]; done {
			continue
		}
		fd, failed := at.open()
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("test direct routes through %s from %s: %w", d.link, d.source, failed))
			continue
		}
		sockets[at] = fd
	}
	return sockets, err
}

func (b bound) open() (fd int, err error) {
	var at unix.Sockaddr = &unix.SockaddrInet6{Addr: b.source.As16()}
	family, protocol := unix.AF_INET6, unix.IPPROTO_ICMPV6
	if b.source.Is4() {
		family, protocol, at = unix.AF_INET, unix.IPPROTO_ICMP, &unix.SockaddrInet4{Addr: b.source.As4()}
	}
	if fd, err = echoSocket(family, protocol); err != nil {
		return 0, err
	}
	if err = cmp.Or(unix.Bind(fd, at), unix.BindToDevice(fd, b.link)); err != nil {
		unix.Close(fd) //nolint:errcheck // nothing to lose
	}
	return fd, err
}

func (s boundSockets) close() {
	for _, fd := range s {
		unix.Close(fd) //nolint:errcheck // nothing to lose
	}
}
