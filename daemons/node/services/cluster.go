// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/patchbay-net/patchbay/daemons/internal/losses"
	"github.com/patchbay-net/patchbay/internal/resident"
	"github.com/patchbay-net/patchbay/internal/services"
)

// Kind is a kind of objects.
type Kind int

// These are the kinds: of v1, discovery.k8s.io/v1 and networking.k8s.io/v1.
const (
	Services Kind = iota
	EndpointSlices
	Nodes
	ServiceCIDRs
	kinds // their number
)

// String returns the name of the API's resource, such as "endpointslices".
func (k Kind) String() string {
	return [...]string{"services", "endpointslices", "nodes", "servicecidrs"}[k]
}

// Problem is an object that cannot be read as a whole.
type Problem struct{ Object, Text string }

// Cluster is the agent's copy of the API's objects. The calls of one kind must be in the order of the API's events. Calls of
// different kinds may run at the same time.
type Cluster struct {
	node    string
	started time.Time
	changed chan struct{} // has room for one signal

	mu      sync.Mutex
	objects objects
	follows *losses.Table
	wrong   [kinds]map[services.Name]string
	due     changes
	pending time.Time      // of the first change that is due, once each kind has been listed; zero: none is
	working time.Time      // the same of those that Follow is putting in force, or could not
	untold  []time.Time    // triggers of changes that could not be put in force
	saved   bool           // it has the objects of an earlier run
	state   services.State // the last one; only Follow writes to it
}

// New returns the copy of a node's agent. It has no object.
func New(node string, o services.Options) *Cluster {
	c := &Cluster{node: node, started: time.Now(), changed: make(chan struct{}, 1), objects: newObjects(), due: newChanges()}
	c.due.all = true
	c.follows = losses.New(Services, EndpointSlices, Nodes, ServiceCIDRs)
	c.state = services.State{Options: o, Services: make(map[services.Name]*services.Service), Slices: make(map[services.Name][]*services.Slice)}
	for k := range c.wrong {
		c.wrong[k] = make(map[services.Name]string)
	}
	return c
}

// Set stores an object that was added or changed, as the API serves it in JSON. If a part of it cannot be read, Problems has it. Set
// returns an error only if it cannot read which object it is; then something is not known, so the caller must list the kind again.
func (c *Cluster) Set(k Kind, object []byte) error {
	i, err := c.read(k, object)
	if err != nil {
		return fmt.Errorf("read one of the %s: %w", k, err)
	}
	c.change(func() { c.put(k, i) })
	return nil
}

// Delete removes an object that was deleted. The namespace of an object that is in none is "". The Node of this node stays as it was.
func (c *Cluster) Delete(k Kind, namespace, name string) {
	c.change(func() { c.remove(k, services.Name{Namespace: namespace, Name: name}) })
}

// Replace stores a list of all objects of a kind, and removes all others. No state has a part of the list. If the list or the name of an
// object cannot be read, the former objects stay, and Replace returns an error. If the API server does not have the kind, its list is empty.
func (c *Cluster) Replace(k Kind, list iter.Seq2[[]byte, error]) error {
	var all []item
	seen := make(map[services.Name]bool)
	for object, err := range list {
		var i item
		if err == nil {
			i, err = c.read(k, object)
		}
		if err != nil {
			return fmt.Errorf("replace the %s: read the list of all, after %d: %w", k, len(all), err)
		}
		all, seen[i.name] = append(all, i), true
	}
	c.change(func() {
		for _, name := range c.names(k) {
			if !seen[name] {
				c.remove(k, name)
			}
		}
		for _, i := range all {
			c.put(k, i)
		}
		if c.follows.List(int(k)) {
			c.due.any = true
		}
	})
	return nil
}

// Report stores the result of a request for the objects of a kind. err is nil if they are followed again, so that no event was lost.
func (c *Cluster) Report(k Kind, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.follows.Report(int(k), err)
}

// Losses returns the kinds that are not followed.
func (c *Cluster) Losses() []losses.Loss {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.follows.All()
}

// Listed reports whether a kind was listed.
func (c *Cluster) Listed(k Kind) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.follows.Listed(int(k))
}

// SetAddresses stores the addresses of this node's links, and reports whether they have changed.
func (c *Cluster) SetAddresses(list []netip.Addr) (changed bool) {
	list = slices.Clone(list)
	slices.SortFunc(list, netip.Addr.Compare)
	list = slices.Compact(list)
	c.change(func() {
		if changed = !slices.Equal(list, c.objects.addresses); changed {
			c.objects.addresses, c.due.all = list, true
		}
	})
	return changed
}

// Wake makes Follow call its function soon for everything, although no object has changed.
func (c *Cluster) Wake() { c.change(func() { c.due.all = true }) }

func (c *Cluster) change(do func()) {
	c.mu.Lock()
	do()
	due := !c.due.empty()
	if due && c.pending.IsZero() && c.follows.Complete() {
		c.pending = time.Now()
	}
	c.mu.Unlock()
	if due {
		resident.Signal(c.changed)
	}
}

// Pending returns since when a change waits that is not in force. If none does, it returns the zero time.
func (c *Cluster) Pending() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.working.IsZero() {
		return c.working
	}
	return c.pending
}

// Count returns how many Services and endpoints are known. An endpoint of two slices counts twice.
func (c *Cluster) Count() (services, endpoints int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.objects.slices {
		endpoints += len(s.Endpoints)
	}
	return len(c.objects.services), endpoints
}

// Problems returns the objects that cannot be read as a whole, sorted.
func (c *Cluster) Problems() (list []Problem) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, wrong := range c.wrong {
		for name, text := range wrong {
			list = append(list, Problem{strings.TrimSuffix(Kind(k).String(), "s") + " " + strings.TrimPrefix(name.String(), "/"), text})
		}
	}
	slices.SortFunc(list, func(a, b Problem) int { return strings.Compare(a.Object, b.Object) })
	return list
}

// item is an object that was read.
type item struct {
	name  services.Name
	value any    // *services.Service, *services.Slice, services.Node or []netip.Prefix
	wrong string // what cannot be read
}

// errUnnamed means that an object may be any of those that are known.
var errUnnamed = errors.New("it has no name or no namespace")

// read reads an object. It returns an error only if the name cannot be read.
func (c *Cluster) read(k Kind, object []byte) (i item, err error) {
	switch k {
	case Services:
		s, wrong := services.ParseService(object)
		i, err = item{name: s.Name, value: &s}, wrong
	case EndpointSlices:
		s, wrong := services.ParseSlice(object)
		i, err = item{name: services.Name{Namespace: s.Service.Namespace, Name: s.Name}, value: &s}, wrong
	case Nodes:
		n, wrong := services.ParseNode(object)
		i, err = item{name: services.Name{Name: n.Name}, value: n}, wrong
	case ServiceCIDRs:
		name, ranges, wrong := services.ParseServiceCIDR(object)
		i, err = item{name: services.Name{Name: name}, value: ranges}, wrong
	}
	if i.name.Name == "" || i.name.Namespace == "" && (k == Services || k == EndpointSlices) {
		return i, errors.Join(err, errUnnamed)
	}
	if err != nil {
		i.wrong = err.Error()
	}
	return i, nil
}
