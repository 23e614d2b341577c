// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package networks

import (
	"maps"
	"slices"
	"sync"

	"github.com/patchbay-net/patchbay/daemons/internal/copies"
	"github.com/patchbay-net/patchbay/internal/npwg"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// Kind is a kind of objects.
type Kind int

// These are the kinds.
const (
	Definitions Kind = iota
	Pods
	kinds // their number
)

// String returns the name of the API's resource.
func (k Kind) String() string { return [...]string{"network-attachment-definitions", "pods"}[k] }

// Cluster is a node's copy of the API's objects.
type Cluster struct {
	*copies.Copies[Kind]
	node string

	mu      sync.Mutex
	objects [kinds]map[name]any // npwg.Definition, Pod
	changes [kinds]uint64       // how often they have changed
}

// name names an object.
type name struct{ namespace, name string }

// NewCluster returns the copy of a node's agent. It has no object. changed has room for one signal, and gets it after each change.
func NewCluster(node string, changed chan struct{}) *Cluster {
	c := &Cluster{node: node, objects: [kinds]map[name]any{{}, {}}}
	c.Copies = copies.New(kinds, copies.Single[Kind, name, any]{
		Name:   func(namespace, object string) name { return name{namespace, object} },
		Read:   c.read,
		Put:    c.put,
		Remove: func(k Kind, n name) bool { return c.put(k, n, nil) },
		Names:  func(k Kind) []name { return slices.Collect(maps.Keys(c.objects[k])) },
	}.Reader(), &c.mu, func() { resident.Signal(changed) })
	return c
}

// Generation returns a number that is another one after each change of a kind, and after its first list.
func (c *Cluster) Generation(k Kind) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.changes[k] << 1
	if c.Listed(k) {
		n++
	}
	return n
}

// put stores an object. A value of nil removes it.
func (c *Cluster) put(k Kind, n name, value any) (changed bool) {
	all := c.objects[k]
	changed = all[n] != value
	if all[n] = value; value == nil {
		delete(all, n)
	}
	if changed {
		c.changes[k]++
	}
	return changed
}

// Definitions returns all definitions, in no order.
func (c *Cluster) Definitions() []npwg.Definition { return all[npwg.Definition](c, Definitions) }

// Pods returns the pods of this node, in no order.
func (c *Cluster) Pods() []Pod { return all[Pod](c, Pods) }

func all[T any](c *Cluster, k Kind) (list []T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, value := range c.objects[k] {
		list = append(list, value.(T)) //nolint:forcetypeassert // read made it
	}
	return list
}
