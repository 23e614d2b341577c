// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"fmt"

	"github.com/vishvananda/netlink"
)

// remember notes the links that a State goes by.
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

// concerns says whether the State goes by a link. One that was made anew has its
// name, one that is gone its index.
func (m *Mesh) concerns(name string, index int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.depends[name]; ok {
		return true
	}
	for _, i := range m.depends {
		if i == index && i != 0 {
			return true
		}
	}
	return false
}

// Watch calls changed, from one goroutine, when something happened to the links
// that the last Sync went by, or to routes by them: an uplink that went down took
// our routes along. Sync again then, after a
// moment, for changes come in swarms; what Sync itself changes is told too, and
// the second Sync writes nothing. Watch returns when ctx ends, or with an error
// when the kernel cannot be listened to. It may run beside Sync.
func (m *Mesh) Watch(ctx context.Context, changed func()) error {
	done := make(chan struct{})
	links, routes := make(chan netlink.LinkUpdate), make(chan netlink.RouteUpdate)
	lost := make(chan error, 2)
	fail := func(err error) {
		select {
		case lost <- err:
		default:
		}
	}
	defer close(done)
	if err := netlink.LinkSubscribeWithOptions(links, done, netlink.LinkSubscribeOptions{ErrorCallback: fail}); err != nil {
		return fmt.Errorf("watch links: %w", err)
	}
	if err := netlink.RouteSubscribeWithOptions(routes, done, netlink.RouteSubscribeOptions{ErrorCallback: fail}); err != nil {
		go drain(links)
		return fmt.Errorf("watch routes: %w", err)
	}
	defer func() { go drain(links); go drain(routes) }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-lost:
			changed() // whatever was missed
			return fmt.Errorf("watch links and routes: %w", err)
		case u := <-links:
			if m.concerns(u.Attrs().Name, u.Attrs().Index) {
				changed()
			}
		case u := <-routes:
			if m.concerns("", u.LinkIndex) {
				changed()
			}
		}
	}
}

// drain lets the library's goroutine see that nobody listens any more.
func drain[T any](c <-chan T) {
	for range c {
	}
}
