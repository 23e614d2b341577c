// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
)

// remember stores the links that a State uses.
func (m *Mesh) remember(s State) {
	names := make(map[string]int)
	for _, name := range s.devices() {
		names[name] = 0
	}
	for _, r := range s.Routes {
		names[r.Link] = 0
	}
	delete(names, "")
	for name := range names {
		if link, err := m.conn.Link(name); err == nil {
			names[name] = link.Attrs().Index
		}
	}
	m.paths.want(s.Ends, s.tunnelEnds(), s.Directs)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.depends = names
}

// expect stores the routes of a State before Sync looks for routes in their way. So Watch misses
// no change after that look.
func (m *Mesh) expect(s State) {
	var wanted routed
	var refused []netip.Prefix
	for _, r := range s.Routes {
		if r.Refused {
			refused = append(refused, r.Dst)
		} else {
			wanted.add(r.Dst, "")
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wanted, m.refused, m.blocked = wanted, refused, nil
}

// blockedBy stores the link of a foreign route that is in the way.
func (m *Mesh) blockedBy(index int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.blocked = append(m.blocked, index)
}

// freed reports whether a foreign route that was in the way may have gone with a link or with
// its last address. The kernel reports no removal of IPv4 routes then.
func (m *Mesh) freed(index int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Contains(m.blocked, index)
}

// crosses reports whether a route is one of the State's or may be in the way of one. Another
// program's route may be in the way if it leads to a block or a part of it, or if it is the network
// of a link and contains a block. A node has many other routes, such as those of its containers, so
// crosses must be fast.
func (m *Mesh) crosses(r *netlink.Route) bool {
	p := nl.PrefixOf(r.Dst)
	if !p.IsValid() {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	_, found := m.wanted.around(p)
	if !found && r.Protocol == unix.RTPROT_KERNEL && r.Table == unix.RT_TABLE_MAIN {
		_, found = m.wanted.inside(p)
	}
	return found || slices.Contains(m.refused, p)
}

// concerns reports whether the State uses a link. By the name it finds a link that was
// created again, and by the index a link that was deleted.
func (m *Mesh) concerns(name string, index int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.depends[name]; ok || slices.Contains(m.uplinks, index) {
		return true
	}
	for _, i := range m.depends {
		if i == index && i != 0 {
			return true
		}
	}
	return false
}

// moved reports whether a new or removed address matters: it is on an uplink, or it is this
// host's address in one of its blocks. The kernel also reports a renewed lifetime as a new
// address.
func (m *Mesh) moved(u netlink.AddrUpdate) bool {
	a := nl.AddrOf(u.LinkAddress.IP)
	m.mu.Lock()
	defer m.mu.Unlock()
	if u.Flags&unix.IFA_F_TENTATIVE != 0 || u.NewAddr == m.hostAddrs[a] {
		return false
	}
	return slices.Contains(m.uplinks, u.LinkIndex) || slices.ContainsFunc(m.blocks, func(b netip.Prefix) bool { return b.Contains(a) })
}

// Watch calls changed after each change that may require a Sync. Watch watches the links that
// the last Sync used, the links with underlay addresses, the routes through them, default
// routes, and the host's addresses that matter. For example, the kernel removes our routes
// when an uplink goes down, and an uplink may get another address or MTU. Watch also watches
// the routes of all programs to the peers' blocks: when a foreign route goes, ours can be made.
//
// Watch calls changed for the first time when it has begun to watch, because it does not know
// what changed before. It calls changed from one goroutine. The caller should wait a moment before it syncs,
// because changes come in bursts. Watch also reports the changes that Sync makes; the Sync
// after that writes nothing. Watch returns when ctx ends, or with an error if it cannot read
// the kernel's events. Watch may run at the same time as Sync.
func (m *Mesh) Watch(ctx context.Context, changed func()) error {
	done := make(chan struct{})
	links, routes, addrs := make(chan netlink.LinkUpdate), make(chan netlink.RouteUpdate), make(chan netlink.AddrUpdate)
	listening, lose := context.WithCancelCause(ctx) // the first failure is the cause
	defer lose(nil)
	defer close(done)
	if err := netlink.LinkSubscribeWithOptions(links, done, netlink.LinkSubscribeOptions{ErrorCallback: lose}); err != nil {
		return fmt.Errorf("watch links: %w", err)
	}
	defer func() { go drain(links) }()
	if err := subscribeRoutes(routes, done, lose); err != nil {
		return fmt.Errorf("watch routes: %w", err)
	}
	defer func() { go drain(routes) }()
	if err := netlink.AddrSubscribeWithOptions(addrs, done, netlink.AddrSubscribeOptions{ErrorCallback: lose}); err != nil {
		return fmt.Errorf("watch addresses: %w", err)
	}
	defer func() { go drain(addrs) }()
	changed()
	for {
		matters, ok := m.next(listening, links, routes, addrs)
		if ctx.Err() != nil {
			return nil
		}
		if !ok {
			lose(errNoEvents) // used only if the library gave no cause
			changed()         // events may have been lost
			return fmt.Errorf("watch links, routes and addresses: %w", context.Cause(listening))
		}
		if matters {
			changed()
		}
	}
}

// routeBuffer holds the events, about a kilobyte each, of a routing program that starts or ends
// beside thousands of hosts.
const routeBuffer = 8 << 20

// subscribeRoutes subscribes to changes of routes. In a user namespace, the socket keeps the size
// that the system allows.
func subscribeRoutes(routes chan<- netlink.RouteUpdate, done <-chan struct{}, failed func(error)) error {
	o := netlink.RouteSubscribeOptions{ErrorCallback: failed, ReceiveBufferSize: routeBuffer, ReceiveBufferForceSize: true}
	err := netlink.RouteSubscribeWithOptions(routes, done, o)
	if errors.Is(err, unix.EPERM) {
		o.ReceiveBufferForceSize = false
		err = netlink.RouteSubscribeWithOptions(routes, done, o)
	}
	return err
}

var errNoEvents = errors.New("the kernel sends no more events")

// next waits for one event and reports whether the event matters. ok is false after the last
// event. The library reports the cause, such as a full socket, and then closes its channel;
// next may see either of them first.
func (m *Mesh) next(listening context.Context, links <-chan netlink.LinkUpdate, routes <-chan netlink.RouteUpdate, addrs <-chan netlink.AddrUpdate) (matters, ok bool) {
	select {
	case <-listening.Done():
		return false, false
	case u, ok := <-links:
		matters = ok && m.concerns(u.Attrs().Name, u.Attrs().Index)
		if matters {
			m.paths.stir()
		}
		down := ok && (u.Header.Type == unix.RTM_DELLINK || u.Flags&unix.IFF_UP == 0)
		return matters || down && m.freed(u.Attrs().Index), ok
	case u, ok := <-routes:
		return ok && (m.concerns("", u.LinkIndex) || nl.PrefixOf(u.Dst).Bits() <= 0 || m.crosses(&u.Route)), ok
	case u, ok := <-addrs:
		return ok && (m.moved(u) || !u.NewAddr && m.freed(u.LinkIndex)), ok
	}
}

// drain reads the remaining events, so that the library's goroutines can end.
func drain[T any](c <-chan T) {
	for range c {
	}
}
