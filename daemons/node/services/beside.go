// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"net/netip"

	"github.com/patchbay-net/patchbay/internal/services"
)

// Beside is who keeps more of Services of type LoadBalancer than programs need (daemons/node/lan). So the agent follows them once. Put and Remove
// are called in the order of the API's events, with the lock of the Cluster: they must not call it.
type Beside struct {
	Read    func(object []byte) any             // reads a Service, as the API serves it
	Put     func(name services.Name, value any) // stores what Read returned
	Remove  func(name services.Name)            // of a Service that is gone, or of another type now; it may be unknown
	Changed func()                              // anything has changed
	Alone   bool                                // nobody calls Follow
}

// Share gives objects to somebody else, too. Call it before the first list.
func (c *Cluster) Share(with Beside) {
	c.beside = with
	c.due.ignored = with.Alone
}

func (b *Beside) read(s *services.Service, object []byte) any {
	if b.Read == nil || s.Type != services.TypeLoadBalancer {
		return nil
	}
	return b.Read(object)
}

// put stores what was read of a Service, and reports whether somebody wants to know.
func (b *Beside) put(name services.Name, more any) (changed bool) {
	switch {
	case b.Put == nil:
		return false
	case more == nil:
		b.Remove(name)
		return false
	}
	b.Put(name, more)
	return true
}

func (b *Beside) changed() {
	if b.Changed != nil {
		b.Changed()
	}
}

// Ranges returns the ranges of all ServiceCIDRs.
func (c *Cluster) Ranges() []netip.Prefix {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.objects.ranges()
}
