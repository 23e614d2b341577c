// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

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
	head := saved.Objects{Node: c.objects.node, Options: c.state.Options, CIDRs: make(map[string][]netip.Prefix)}
	for name, ranges := range c.objects.cidrs {
		head.CIDRs[name.Name] = ranges
	}
	all := make([]kept, 0, len(c.objects.kept))
	for _, k := range c.objects.kept {
		all = append(all, *k)
	}
	number := len(c.keptNames(Services)) + len(c.objects.owners)
	c.mu.Unlock()
	slices.SortFunc(all, func(a, b kept) int { return strings.Compare(a.name, b.name) })
	return write(saved.NewWriter(to, &head, number), all)
}

// write unpacks one object after the other.
func write(to *saved.Writer, all []kept) error {
	for i := range all {
		if svc := all[i].service.unpack(nameOf(all[i].name)); svc != nil {
			to.Service(svc)
		}
	}
	for i := range all {
		_, list := all[i].unpack()
		for _, s := range list {
			to.Slice(s)
		}
	}
	return to.Err()
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
		c.put(Services, s.Name, item{value: packService(s)})
	}
	for _, s := range all.Slices {
		c.put(EndpointSlices, sliceName(s), item{value: someSliceOf(s)})
	}
	return nil
}

// Cached returns what is known before each kind has been listed. ok is false without a successful Restore. The caller may keep the state.
func (c *Cluster) Cached() (s services.State, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := &c.objects
	return services.State{Options: c.state.Options, Node: o.node, Addresses: o.addresses, CIDRs: o.ranges(), Source: c}, c.saved
}
