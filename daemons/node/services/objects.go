// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/services"
)

// objects are those that are kept. What a value points to does not change, because a state has it too.
type objects struct {
	services  map[services.Name]*services.Service
	slices    map[services.Name]*services.Slice   // by their own names
	byService map[services.Name][]*services.Slice // the same, sorted by their own names; a list does not change, because a state has it too
	cidrs     map[services.Name][]netip.Prefix
	node      services.Node
	addresses []netip.Addr
}

func newObjects() objects {
	return objects{
		services: make(map[services.Name]*services.Service), slices: make(map[services.Name]*services.Slice),
		byService: make(map[services.Name][]*services.Slice), cidrs: make(map[services.Name][]netip.Prefix),
	}
}

// names returns the names of the objects of a kind, also of those of which nothing is kept but what is wrong.
func (c *Cluster) names(k Kind) []services.Name {
	list := slices.Collect(maps.Keys(c.wrong[k]))
	switch k {
	case Services:
		return slices.AppendSeq(list, maps.Keys(c.objects.services))
	case EndpointSlices:
		return slices.AppendSeq(list, maps.Keys(c.objects.slices))
	case ServiceCIDRs:
		return slices.AppendSeq(list, maps.Keys(c.objects.cidrs))
	}
	return list // this node's Node stays
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
	case *services.Service:
		if !reflect.DeepEqual(o.services[name], v) {
			o.services[name] = v
			return c.due.note(name)
		}
	case *services.Slice:
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
	return false
}

// putSlice stores a slice. It may have belonged to another Service before.
func (c *Cluster) putSlice(name services.Name, s *services.Slice) (changed bool) {
	o := &c.objects
	have := o.slices[name]
	needless := s.Headless || s.Service.Name == ""
	if have != nil && !needless && equalSlices(have, s) {
		return false
	}
	if have != nil {
		changed = c.removeSlice(name, have)
	}
	if needless {
		return changed
	}
	o.slices[name] = s
	list := append(slices.Clone(o.byService[s.Service]), s)
	slices.SortFunc(list, func(a, b *services.Slice) int { return strings.Compare(a.Name, b.Name) })
	o.byService[s.Service] = slices.Clip(list)
	if s.Triggered.After(c.started) { // what was before, this agent could not do sooner
		c.due.triggers[s.Service] = append(c.due.triggers[s.Service], s.Triggered)
	}
	return c.due.note(s.Service)
}

// equalSlices compares what counts.
func equalSlices(a, b *services.Slice) bool {
	same := *b
	same.Triggered = a.Triggered
	return reflect.DeepEqual(a, &same)
}

func (c *Cluster) removeSlice(name services.Name, s *services.Slice) (changed bool) {
	o := &c.objects
	delete(o.slices, name)
	list := slices.DeleteFunc(slices.Clone(o.byService[s.Service]), func(other *services.Slice) bool { return other == s })
	put(o.byService, s.Service, list, len(list) > 0)
	return c.due.note(s.Service)
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
		if o.services[name] != nil {
			delete(o.services, name)
			return c.due.note(name)
		}
	case EndpointSlices:
		if s := o.slices[name]; s != nil {
			delete(c.due.triggers, s.Service) // its time is that of an earlier change
			return c.removeSlice(name, s)
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
