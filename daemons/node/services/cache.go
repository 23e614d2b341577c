// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/services"
	"github.com/patchbay-net/patchbay/internal/services/saved"
)

// errPartial means that Save must wait.
var errPartial = errors.New("not every kind of objects has been listed")

// Save writes what decides about Services, so that Restore has it without the API server. The same objects give the same bytes. It returns an error if a kind has not been listed: what an earlier run wrote is better than a part.
func (c *Cluster) Save(to io.Writer) error {
	c.mu.Lock()
	if !c.Complete() {
		c.mu.Unlock()
		return errPartial
	}
	all := saved.Objects{Node: c.objects.node, Options: c.state.Options, CIDRs: make(map[string][]netip.Prefix)}
	for name, ranges := range c.objects.cidrs {
		all.CIDRs[name.Name] = ranges
	}
	all.Services = slices.SortedFunc(maps.Values(c.objects.services), func(a, b *services.Service) int { return compareNames(a.Name, b.Name) })
	all.Slices = slices.SortedFunc(maps.Values(c.objects.slices), func(a, b *services.Slice) int {
		return cmp.Or(compareNames(a.Service, b.Service), cmp.Compare(a.Name, b.Name))
	})
	c.mu.Unlock() // what the pointers point to does not change
	return all.Write(to)
}

// Restore puts what Save wrote into a Cluster that has no object. Lists of the API server then replace it. After an error the Cluster has no
// object.
func (c *Cluster) Restore(all *saved.Objects) error {
	if all.Node.Name != c.node {
		return fmt.Errorf("it is of the Node %q", all.Node.Name)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.saved = true
	c.put(Nodes, services.Name{Name: all.Node.Name}, item{value: all.Node})
	for name, ranges := range all.CIDRs {
		c.put(ServiceCIDRs, services.Name{Name: name}, item{value: ranges})
	}
	for _, s := range all.Services {
		c.put(Services, s.Name, item{value: s})
	}
	for _, s := range all.Slices {
		c.put(EndpointSlices, sliceName(s), item{value: s})
	}
	return nil
}

// Cached returns what is known before each kind has been listed. ok is false without a successful Restore. The caller may keep the state.
func (c *Cluster) Cached() (s services.State, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := &c.objects
	s = services.State{
		Options: c.state.Options, Node: o.node, Addresses: o.addresses, CIDRs: o.ranges(),
		Services: maps.Clone(o.services), Slices: maps.Clone(o.byService),
	}
	return s, c.saved
}
