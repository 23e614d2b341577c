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

// remember notes the links that a State uses.
func (m *Mesh) remember(s State) {
	names := make(map[string]int)
	for _, d := range s.Devices {
		names[d.Name] = 0
	}
	for _, r := range s.Routes {
		names[r.Link] = 0
	}
	for name := range names {
		if link, err := m.conn.Link(name); err == nil {
			names[name] = link.Attrs().Index
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.depends = names
}

// concerns reports whether the State uses a link. A link that was created again has the
// name, one that is gone has the index.
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

// moved reports whether an address that appeared or disappeared matters: it is an uplink's,
// or this host's in one of its blocks. The kernel also reports a renewed lifetime as a new
// address.
func (m *Mesh) moved(u netlink.AddrUpdate) bool {
	a := nl.AddrOf(u.LinkAddress.IP)
	m.mu.Lock()
	defer m.mu.Unlock()
	if u.Flags&unix.IFA_F_TENTATIVE != 0 || u.NewAddr == m.known[a] {
		return false
	}
	return slices.Contains(m.uplinks, u.LinkIndex) || slices.ContainsFunc(m.blocks, func(b netip.Prefix) bool { return b.Contains(a) })
}

// Watch calls changed, from one goroutine, after a change of the links that the last Sync
// used or that have the underlay addresses, of routes through them, of a default route, or
// of the host's addresses that matter: an uplink that went down removed our routes, or one
// got another address or MTU. The caller then syncs again after a moment, because changes
// come in bursts. Watch also reports the changes of Sync itself, after which the second
// Sync writes nothing. Watch returns when ctx ends, or with an error when the kernel's
// events cannot be read. It may run beside Sync.
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
	if err := netlink.RouteSubscribeWithOptions(routes, done, netlink.RouteSubscribeOptions{ErrorCallback: lose}); err != nil {
		return fmt.Errorf("watch routes: %w", err)
	}
	defer func() { go drain(routes) }()
	if err := netlink.AddrSubscribeWithOptions(addrs, done, netlink.AddrSubscribeOptions{ErrorCallback: lose}); err != nil {
		return fmt.Errorf("watch addresses: %w", err)
	}
	defer func() { go drain(addrs) }()
	for {
		matters, ok := m.next(listening, links, routes, addrs)
		if ctx.Err() != nil {
			return nil
		}
		if !ok {
			lose(errNoEvents) // unless the library gave a cause
			changed()         // events may have been lost
			return fmt.Errorf("watch links, routes and addresses: %w", context.Cause(listening))
		}
		if matters {
			changed()
		}
	}
}

var errNoEvents = errors.New("the kernel sends no more events")

// next waits for one event and reports whether it matters. It is not ok after the last one:
// the library reports the cause, such as a full socket, and then closes its channel, so
// that either may be seen first.
func (m *Mesh) next(listening context.Context, links <-chan netlink.LinkUpdate, routes <-chan netlink.RouteUpdate, addrs <-chan netlink.AddrUpdate) (matters, ok bool) {
	select {
	case <-listening.Done():
		return false, false
	case u, ok := <-links:
		return ok && m.concerns(u.Attrs().Name, u.Attrs().Index), ok
	case u, ok := <-routes:
		return ok && (m.concerns("", u.LinkIndex) || nl.PrefixOf(u.Dst).Bits() <= 0), ok
	case u, ok := <-addrs:
		return ok && m.moved(u), ok
	}
}

// drain lets the library's goroutines end after the last reader.
func drain[T any](c <-chan T) {
	for range c {
	}
}
