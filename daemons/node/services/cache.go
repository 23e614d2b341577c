// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"unique"

	"github.com/patchbay-net/patchbay/internal/services"
)

// cacheSchema is the version of the format of Save. The fields of services.Service, Slice and Node are part of it.
const cacheSchema = 1

// head is the first object of the format, and says how many follow.
type head struct {
	Schema, Objects int
	Node            services.Node
	CIDRs           map[string][]netip.Prefix
}

// cached is each further object: a Service or a slice.
type cached struct {
	Service *services.Service `json:",omitempty"`
	Slice   *services.Slice   `json:",omitempty"`
}

// errPartial means that Save must wait.
var errPartial = errors.New("not every kind of objects has been listed")

// Save writes what decides about Services, so that Restore can read it without the API server: JSON, compressed by gzip, in an order that
// depends on nothing else. It returns an error if a kind has not been listed: what an earlier run wrote is better than a part.
func (c *Cluster) Save(to io.Writer) error {
	c.mu.Lock()
	if !c.follows.Complete() {
		c.mu.Unlock()
		return errPartial
	}
	h := head{Schema: cacheSchema, Node: c.objects.node, CIDRs: make(map[string][]netip.Prefix)}
	for name, ranges := range c.objects.cidrs {
		h.CIDRs[name.Name] = ranges
	}
	list := slices.SortedFunc(maps.Values(c.objects.services), func(a, b *services.Service) int { return compareNames(a.Name, b.Name) })
	endpoints := slices.SortedFunc(maps.Values(c.objects.slices), func(a, b *services.Slice) int {
		return cmp.Or(compareNames(a.Service, b.Service), cmp.Compare(a.Name, b.Name))
	})
	c.mu.Unlock() // what the pointers point to does not change
	h.Objects = len(list) + len(endpoints)
	z := gzip.NewWriter(to)
	out := json.NewEncoder(z)
	err := out.Encode(h)
	for _, s := range list {
		err = errors.Join(err, out.Encode(cached{Service: s}))
	}
	for _, s := range endpoints {
		err = errors.Join(err, out.Encode(cached{Slice: s}))
	}
	return errors.Join(err, z.Close())
}

// Restore reads what Save wrote into a Cluster that has no object. Lists of the API server then replace it. After an error the Cluster has no
// object.
func (c *Cluster) Restore(from io.Reader) error {
	h, all, err := readCache(from)
	if err == nil && h.Node.Name != c.node {
		err = fmt.Errorf("it is of the Node %q", h.Node.Name)
	}
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.saved = true
	c.put(Nodes, item{name: services.Name{Name: h.Node.Name}, value: h.Node})
	for name, ranges := range h.CIDRs {
		c.put(ServiceCIDRs, item{name: services.Name{Name: name}, value: ranges})
	}
	for _, o := range all {
		if o.Service != nil {
			c.put(Services, item{name: o.Service.Name, value: o.Service})
			continue
		}
		for i := range o.Slice.Endpoints {
			e := &o.Slice.Endpoints[i]
			e.Node = unique.Make(e.Node).Value() // as ParseSlice does: many endpoints are on one node
		}
		c.put(EndpointSlices, item{name: services.Name{Namespace: o.Slice.Service.Namespace, Name: o.Slice.Name}, value: o.Slice})
	}
	return nil
}

func readCache(from io.Reader) (h head, all []cached, err error) {
	z, err := gzip.NewReader(from)
	if err != nil {
		return h, nil, err
	}
	in := json.NewDecoder(z)
	if err := in.Decode(&h); err != nil {
		return h, nil, err
	}
	if h.Schema != cacheSchema {
		return h, nil, fmt.Errorf("schema %d; this program reads %d", h.Schema, cacheSchema)
	}
	for in.More() {
		var o cached
		if err := in.Decode(&o); err != nil {
			return h, nil, err
		}
		if (o.Service == nil) == (o.Slice == nil) {
			return h, nil, errors.New("an object is neither a Service nor a slice")
		}
		all = append(all, o)
	}
	if len(all) != h.Objects {
		return h, nil, fmt.Errorf("it has %d objects of %d", len(all), h.Objects)
	}
	return h, all, nil
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
