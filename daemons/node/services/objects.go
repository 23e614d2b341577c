// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/services"
)

// objects are those that are kept.
type objects struct {
	kept      map[string]*kept // by the name of the Service
	owners    map[string]*kept // of slices, by their own names
	cidrs     map[services.Name][]netip.Prefix
	node      services.Node
	addresses []netip.Addr
}

// kept is what is kept of a Service and its slices.
type kept struct {
	name    string        // shop/web
	service packedService // "": only slices are known
	slices  []packedSlice // sorted; a list does not change, another one replaces it
}

func newObjects() objects {
	return objects{kept: make(map[string]*kept), owners: make(map[string]*kept), cidrs: make(map[services.Name][]netip.Prefix)}
}

// of returns what is kept of a Service.
func (o *objects) of(name services.Name) *kept {
	key := name.String()
	if o.kept[key] == nil {
		o.kept[key] = &kept{name: key}
	}
	return o.kept[key]
}

// drop forgets a Service of which nothing is kept.
func (o *objects) drop(k *kept) {
	if k.service == "" && len(k.slices) == 0 {
		delete(o.kept, k.name)
	}
}

// nameOf returns the name with a text.
func nameOf(text string) (n services.Name) {
	n.Namespace, n.Name, _ = strings.Cut(text, "/")
	return n
}

// unpack returns the Service, or nil, and its slices.
func (k *kept) unpack() (svc *services.Service, list []*services.Slice) {
	name := nameOf(k.name)
	svc = k.service.unpack(name)
	for i := range k.slices {
		list = append(list, k.slices[i].unpack(name))
	}
	return svc, list
}

// Names implements services.Source.
func (c *Cluster) Names() iter.Seq[services.Name] {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Values(c.keptNames(Services))
}

// Of implements services.Source. What has changed since the state was made is in it already; the next one names it.
func (c *Cluster) Of(name services.Name) (*services.Service, []*services.Slice) {
	c.mu.Lock()
	k := c.objects.kept[name.String()]
	if k == nil {
		c.mu.Unlock()
		return nil, nil
	}
	now := *k
	c.mu.Unlock()
	return now.unpack()
}

// keptNames returns the names of the objects of a kind.
func (c *Cluster) keptNames(k Kind) (list []services.Name) {
	switch k {
	case Services:
		for name, kept := range c.objects.kept {
			if kept.service != "" {
				list = append(list, nameOf(name))
			}
		}
	case EndpointSlices:
		for name := range c.objects.owners {
			list = append(list, nameOf(name))
		}
	case ServiceCIDRs:
		return slices.Collect(maps.Keys(c.objects.cidrs))
	}
	return list // this node's Node stays
}

// names returns the names of the objects of a kind, also of those of which nothing is kept but what is wrong.
func (c *Cluster) names(k Kind) []services.Name {
	return slices.AppendSeq(c.keptNames(k), maps.Keys(c.wrong[k]))
}

// put stores an object, and notes what it changes.
func (c *Cluster) put(k Kind, name services.Name, i item) (changed bool) {
	if n, ok := i.value.(services.Node); ok && n.Name != c.node {
		return false
	}
	if delete(c.wrong[k], name); i.wrong != "" {
		c.wrong[k][name] = i.wrong
	}
	o := &c.objects
	switch v := i.value.(type) {
	case packedService:
		changed = c.beside.put(name, i.more)
		if kept := o.of(name); kept.service != v {
			kept.service = v.moved()
			return c.due.note(name)
		}
	case *someSlice:
		return c.putSlice(name, v)
	case services.Node:
		if !reflect.DeepEqual(o.node, v) {
			o.node = v
			return c.due.everything()
		}
	case []netip.Prefix:
		if have, ok := o.cidrs[name]; !ok || !slices.Equal(have, v) {
			o.cidrs[name] = v
			return c.due.everything()
		}
	}
	return changed
}

// putSlice stores a slice. It may have belonged to another Service before.
func (c *Cluster) putSlice(name services.Name, s *someSlice) (changed bool) {
	o, key := &c.objects, name.String()
	if had := o.owners[key]; had != nil {
		if i, _ := had.find(name.Name); !s.needless && had == o.of(s.service) && had.slices[i].equal(&s.packedSlice) {
			return false
		}
		changed = c.removeSlice(key, had)
	}
	if s.needless {
		return changed
	}
	owner := o.of(s.service)
	i, _ := owner.find(name.Name)
	owner.slices = slices.Concat(owner.slices[:i], []packedSlice{s.moved(key)}, owner.slices[i:])
	o.owners[key] = owner
	if s.triggered.After(c.started) { // what was before, this agent could not do sooner
		c.due.trigger(s.service, s.triggered)
	}
	return c.due.note(s.service)
}

// find returns where the slice of a name is, or belongs.
func (k *kept) find(name string) (int, bool) {
	return slices.BinarySearchFunc(k.slices, name, func(s packedSlice, name string) int { return cmp.Compare(s.name, name) })
}

func (c *Cluster) removeSlice(key string, from *kept) (changed bool) {
	if i, ok := from.find(nameOf(key).Name); ok {
		from.slices = slices.Delete(slices.Clone(from.slices), i, i+1)
	}
	delete(c.objects.owners, key)
	c.objects.drop(from)
	return c.due.note(nameOf(from.name))
}

// remove removes an object.
func (c *Cluster) remove(k Kind, name services.Name) (changed bool) {
	if k == Nodes {
		return false
	}
	o := &c.objects
	delete(c.wrong[k], name)
	switch k {
	case Services:
		if kept := o.kept[name.String()]; kept != nil && kept.service != "" {
			c.beside.put(name, nil)
			kept.service = ""
			o.drop(kept)
			return c.due.note(name)
		}
	case EndpointSlices:
		if kept := o.owners[name.String()]; kept != nil {
			delete(c.due.triggers, nameOf(kept.name)) // its time is that of an earlier change
			return c.removeSlice(name.String(), kept)
		}
	case ServiceCIDRs:
		if _, ok := o.cidrs[name]; ok {
			delete(o.cidrs, name)
			return c.due.everything()
		}
	}
	return false
}

// ranges returns the ranges of all ServiceCIDRs.
func (o *objects) ranges() (list []netip.Prefix) {
	for _, name := range slices.SortedFunc(maps.Keys(o.cidrs), func(a, b services.Name) int { return strings.Compare(a.Name, b.Name) }) {
		list = append(list, o.cidrs[name]...)
	}
	return list
}
