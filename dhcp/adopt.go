// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"github.com/patchbay-net/patchbay/dhcp/client"
	"github.com/patchbay-net/patchbay/internal/owner"
)

// Adopt requests in the background the leases of attachments that another keeper has left:
// those whose interface has the address, without a lease here. A server knows the client id
// and gives the same address; if it gives another one, that replaces the first on the
// interface.
func (k *Keeper) Adopt(list []Cached) {
	for _, a := range list {
		k.adopting.Go(func() { k.adoptLeft(&a) })
	}
}

func (k *Keeper) adoptLeft(a *Cached) {
	r, _, err := k.record(&a.Args)
	if err != nil {
		k.opts.Log("adopt %s/%s: %v", a.Args.ContainerID, a.Args.IfName, err)
		return
	}
	left := k.left(r.Owner, a)
	if len(left) == 0 {
		return
	}
	k.opts.Log("%s/%s: taking over from another keeper", a.Args.ContainerID, a.Args.IfName)
	if _, err := k.Allocate(k.ctx, &a.Args); err != nil {
		k.opts.Log("adopt %s/%s: %v", a.Args.ContainerID, a.Args.IfName, err)
		return
	}
	k.mu.Lock()
	e := k.entries[r.Owner]
	k.mu.Unlock()
	if e != nil {
		e.replace(left)
	}
}

// left is the part of a cached result that is on the interface, one setup for each address,
// when no lease of it is known.
func (k *Keeper) left(o owner.Key, a *Cached) (out []*client.Setup) {
	k.mu.Lock()
	known := k.entries[o] != nil
	k.mu.Unlock()
	if known {
		return nil
	}
	p, err := client.Find(k.opts.HostPrefix+a.Args.NetNS, a.Args.IfName)
	if err != nil {
		return nil // the container is gone, and its DEL never came
	}
	for _, ip := range a.Result.IPs {
		if had, err := p.Holds(ip.Address); err != nil || !had {
			continue
		}
		s := &client.Setup{Address: ip.Address, Gateway: ip.Gateway}
		for _, r := range a.Result.Routes {
			if r.Dst.Addr().Is4() == ip.Address.Addr().Is4() {
				s.Routes = append(s.Routes, r)
			}
		}
		out = append(out, s)
	}
	return out
}

// replace puts the granted addresses in place of those that are left.
func (e *entry) replace(left []*client.Setup) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range e.addrs {
		if a.grant == nil {
			continue
		}
		for _, s := range left {
			if s.Address.Addr().Is4() != a.grant.Address.Addr().Is4() || s.Address == a.grant.Address {
				continue
			}
			e.k.opts.Log("%s: the server gives %s instead of %s", e, a.grant.Address, s.Address)
			if err := e.rec.Place.Change(s, e.setup(a.grant)); err != nil {
				e.k.opts.Log("%s: apply new lease: %v", e, err)
			}
		}
	}
}
