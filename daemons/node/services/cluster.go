// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/patchbay-net/patchbay/daemons/internal/copies"
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

// Cluster is the agent's copy of the API's objects. If a part of one cannot be read, Problems has it. The Node of this node stays when it is deleted.
type Cluster struct {
	*copies.Copies[Kind]
	node    string
	started time.Time
	changed chan struct{} // has room for one signal

	mu      sync.Mutex
	objects objects
	beside  Beside
	wrong   [kinds]map[services.Name]string
	due     changes
	working time.Time      // when the first of the changes came that Follow is putting in force, or could not; zero: there is none
	untold  []time.Time    // triggers of changes that could not be put in force
	saved   bool           // it has the objects of an earlier run
	state   services.State // the last one; only Follow writes to it
}

// New returns the copy of a node's agent. It has no object.
func New(node string, o services.Options) *Cluster {
	c := &Cluster{node: node, started: time.Now(), changed: make(chan struct{}, 1), objects: newObjects(), due: newChanges()}
	c.due.all = true
	c.Copies = copies.New(kinds, copies.Single[Kind, services.Name, item]{
		Name: func(namespace, name string) services.Name { return services.Name{Namespace: namespace, Name: name} },
		Read: c.read, Put: c.put, Remove: c.remove, Names: c.names,
	}.Reader(), &c.mu, func() { resident.Signal(c.changed); c.beside.changed() })
	c.state = services.State{Options: o, Source: c}
	for k := range c.wrong {
		c.wrong[k] = make(map[services.Name]string)
	}
	return c
}

// SetAddresses stores the addresses of this node's links, and reports whether they have changed.
func (c *Cluster) SetAddresses(list []netip.Addr) (changed bool) {
	list = slices.Clone(list)
	slices.SortFunc(list, netip.Addr.Compare)
	list = slices.Compact(list)
	c.Change(func() bool {
		if changed = !slices.Equal(list, c.objects.addresses); changed {
			c.objects.addresses = list
			c.due.everything()
		}
		return changed
	})
	return changed
}

// Wake makes Follow call its function soon for everything, although no object has changed.
func (c *Cluster) Wake() { c.Change(func() bool { return c.due.everything() }) }

// Pending returns since when a change waits that is not in force. If none does, it returns the zero time.
func (c *Cluster) Pending() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.working.IsZero() {
		return c.working
	}
	return c.pending()
}

// pending returns since when a change is due. What comes before each kind has been listed waits for the lists.
func (c *Cluster) pending() time.Time {
	complete := c.CompleteSince()
	switch {
	case c.due.empty() || complete.IsZero():
		return time.Time{}
	case c.due.since.After(complete):
		return c.due.since
	}
	return complete
}

// Count returns how many Services and endpoints are known. An endpoint of two slices counts twice.
func (c *Cluster) Count() (services, endpoints int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.objects.kept {
		if k.service != "" {
			services++
		}
		for i := range k.slices {
			endpoints += int(k.slices[i].endpoints())
		}
	}
	return services, endpoints
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

// item is what was read of an object.
type item struct {
	value any    // packedService, *someSlice, services.Node or []netip.Prefix
	more  any    // what Beside has read
	wrong string // what cannot be read
}

// errUnnamed means that an object may be any of those that are known.
var errUnnamed = errors.New("it has no name or no namespace")

// read reads an object. It returns an error only if the name cannot be read.
func (c *Cluster) read(k Kind, object []byte) (name services.Name, i item, err error) {
	switch k {
	case Services:
		s, wrong := services.ParseService(object)
		name, i.value, i.more, err = s.Name, packService(&s), c.beside.read(&s, object), wrong
	case EndpointSlices:
		s, wrong := services.ParseSlice(object)
		name, i.value, err = sliceName(&s), someSliceOf(&s), wrong
	case Nodes:
		n, wrong := services.ParseNode(object)
		name.Name, i.value, err = n.Name, n, wrong
	case ServiceCIDRs:
		name.Name, i.value, err = services.ParseServiceCIDR(object)
	}
	if name.Name == "" || name.Namespace == "" && (k == Services || k == EndpointSlices) {
		return name, i, errors.Join(err, errUnnamed)
	}
	if err != nil {
		i.wrong = err.Error()
	}
	return name, i, nil
}

// someSlice is a slice with what is not kept of it.
type someSlice struct {
	packedSlice
	service   services.Name
	needless  bool
	triggered time.Time
}

func someSliceOf(s *services.Slice) *someSlice {
	return &someSlice{packSlice(s), s.Service, s.Headless || s.Service.Name == "", s.Triggered}
}

func sliceName(s *services.Slice) services.Name {
	return services.Name{Namespace: s.Service.Namespace, Name: s.Name}
}
