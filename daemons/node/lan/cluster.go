// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package lan

import (
	"encoding/json"
	"errors"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/patchbay-net/patchbay/daemons/internal/copies"
	"github.com/patchbay-net/patchbay/internal/services"
)

// Kind is a kind of objects.
type Kind int

// These are the kinds. The ConfigMap and the Leases are those of Namespace.
const (
	Services Kind = iota
	EndpointSlices
	Nodes
	ServiceCIDRs
	ConfigMaps
	Leases
	kinds // their number
)

// Namespace has the ConfigMap of the pools, and the Leases. Agents may write every Lease in it.
const Namespace = "patchbay-load-balancers"

// PoolsName is the name of the ConfigMap of the pools.
const PoolsName = "pools"

// String returns the name of the API's resource, such as "endpointslices".
func (k Kind) String() string {
	return [...]string{"services", "endpointslices", "nodes", "servicecidrs", "configmaps", "leases"}[k]
}

// Cluster is a node's copy of the API's objects. Of an object of which a part cannot be read, the rest counts.
type Cluster struct {
	*copies.Copies[Kind]
	node    string
	classes Classes
	now     func() time.Duration
	changed chan struct{} // has room for one signal

	mu       sync.Mutex
	services map[services.Name]*Service
	slices   map[services.Name]*services.Slice // by their own names
	nodes    map[string]Node
	cidrs    map[string][]netip.Prefix
	pools    []Pool
	leases   map[string]Holding // by the names of the Leases
	sessions map[string]Session // by the names of the Leases

	// written has the versions of the Leases that this node wrote or removed in this session. What the API server sends of
	// before is old: this node may have given the address away since.
	written map[string]uint64
}

// NewCluster returns the copy of a node's agent. It has no object.
func NewCluster(node string, c Classes, now func() time.Duration) *Cluster {
	cl := &Cluster{
		node: node, classes: c, now: now, changed: make(chan struct{}, 1),
		services: map[services.Name]*Service{}, slices: map[services.Name]*services.Slice{}, nodes: map[string]Node{},
		cidrs: map[string][]netip.Prefix{}, leases: map[string]Holding{}, sessions: map[string]Session{}, written: map[string]uint64{},
	}
	cl.Copies = copies.New(kinds, copies.Single[Kind, services.Name, any]{
		Name: func(namespace, name string) services.Name { return services.Name{Namespace: namespace, Name: name} },
		Read: read, Put: cl.store, Remove: cl.drop, Names: cl.names,
	}.Reader(), &cl.mu, cl.changed)
	return cl
}

var errUnnamed = errors.New("it has no name")

// read reads an object: a *Service, *services.Slice, Node, []netip.Prefix, []Pool, Lease, Session or nil. It returns an error only if the name cannot be read.
func read(k Kind, object []byte) (name services.Name, value any, err error) {
	switch k {
	case Services:
		s, wrong := ParseService(object)
		name, value, err = s.Name, &s, wrong
	case EndpointSlices:
		s, wrong := services.ParseSlice(object)
		name, value, err = services.Name{Namespace: s.Service.Namespace, Name: s.Name}, &s, wrong
	case Nodes:
		n, wrong := parseNode(object)
		name.Name, value, err = n.Name, n, wrong
	case ServiceCIDRs:
		name.Name, value, err = services.ParseServiceCIDR(object)
	case ConfigMaps:
		name, value, err = parseConfigMap(object)
	case Leases:
		name, value, err = parseLease(object)
	}
	if name.Name == "" {
		return name, nil, errors.Join(err, errUnnamed)
	}
	return name, value, nil
}

type apiMeta struct {
	Metadata struct {
		Namespace, Name, UID, ResourceVersion string
		CreationTimestamp                     time.Time
		DeletionTimestamp                     *time.Time
		Labels, Annotations                   map[string]string
	}
}

func parseNode(text []byte) (Node, error) {
	var o struct {
		apiMeta
		Spec struct{ Taints []struct{ Key string } }
	}
	err := json.Unmarshal(text, &o)
	known, wrong := services.ParseNode(text)
	n := Node{Name: known.Name, Reserved: known.Pods}
	for _, a := range known.Addresses {
		n.Reserved = append(n.Reserved, netip.PrefixFrom(a, a.BitLen()))
	}
	_, n.Excluded = o.Metadata.Labels[LabelExcluded]
	n.Excluded = n.Excluded || o.Metadata.DeletionTimestamp != nil
	for _, t := range o.Spec.Taints {
		n.Excluded = n.Excluded || t.Key == ToBeDeleted
	}
	return n, errors.Join(err, wrong)
}

// ToBeDeleted is the taint by which the cluster autoscaler marks a Node that it is about to delete
// (cluster-autoscaler/utils/taints).
const ToBeDeleted = "ToBeDeletedByClusterAutoscaler"

// parseConfigMap reads a ConfigMap. The value is nil if it is not that of the pools, or cannot be read.
func parseConfigMap(text []byte) (name services.Name, value any, err error) {
	var o struct {
		apiMeta
		Data map[string]string
	}
	err = json.Unmarshal(text, &o)
	name = services.Name{Namespace: o.Metadata.Namespace, Name: o.Metadata.Name}
	if name.Name == PoolsName && err == nil {
		value = ParsePools(o.Data)
	}
	return name, value, err
}

// names returns the names of the objects of a kind.
func (c *Cluster) names(k Kind) (list []services.Name) {
	plain := func(names iter.Seq[string], namespace string) {
		for n := range names {
			list = append(list, services.Name{Namespace: namespace, Name: n})
		}
	}
	switch k {
	case Services:
		return slices.Collect(maps.Keys(c.services))
	case EndpointSlices:
		return slices.Collect(maps.Keys(c.slices))
	case Nodes:
		plain(maps.Keys(c.nodes), "")
	case ServiceCIDRs:
		plain(maps.Keys(c.cidrs), "")
	case ConfigMaps:
		return []services.Name{{Namespace: Namespace, Name: PoolsName}}
	case Leases:
		plain(maps.Keys(c.leases), Namespace)
		plain(maps.Keys(c.sessions), Namespace)
	}
	return list
}

// store stores an object, and reports whether a plan may differ.
func (c *Cluster) store(_ Kind, name services.Name, value any) bool {
	switch v := value.(type) {
	case *Service:
		c.services[name] = v
	case *services.Slice:
		c.slices[name] = v
	case Node:
		c.nodes[v.Name] = v
	case []netip.Prefix:
		c.cidrs[name.Name] = v
	case []Pool:
		c.pools = v
	case Holding:
		return c.putLease(name.Name, v, false)
	case Session:
		return c.putSession(name.Name, v)
	}
	return true
}

// putSession stores a renewal. The same version that comes again, as in a list, is no renewal. One renewal more changes no plan, and the Keeper looks
// again when the last one ends.
func (c *Cluster) putSession(name string, s Session) (changed bool) {
	had, known := c.sessions[name]
	if known && had.ID == s.ID && had.Version == s.Version {
		return false
	}
	s.Seen = c.now()
	c.sessions[name] = s
	return had.ID != s.ID
}

func (c *Cluster) putLease(name string, l Holding, ours bool) bool {
	version, err := strconv.ParseUint(l.Version, 10, 64)
	if err == nil && version < c.written[name] {
		return false
	}
	if ours && err == nil {
		c.written[name] = version
	}
	c.leases[name] = l
	return true
}

// drop removes an object, and reports whether a plan may differ.
func (c *Cluster) drop(k Kind, name services.Name) bool {
	switch k {
	case Services:
		delete(c.services, name)
	case EndpointSlices:
		delete(c.slices, name)
	case Nodes:
		delete(c.nodes, name.Name)
	case ServiceCIDRs:
		delete(c.cidrs, name.Name)
	case ConfigMaps:
		if name.Name == PoolsName {
			c.pools = nil
		}
	case Leases:
		delete(c.leases, name.Name)
		delete(c.sessions, name.Name)
	}
	return true
}

// put stores a Lease that this node has written.
func (c *Cluster) put(l Holding, ours bool) {
	c.Change(func() bool { return c.putLease(LeaseName(l.Addr), l, ours) })
}

// removed notes that this node has removed a Lease. Events of before may still come.
func (c *Cluster) removed(l Holding) {
	c.Change(func() bool {
		name := LeaseName(l.Addr)
		if version, err := strconv.ParseUint(l.Version, 10, 64); err == nil {
			c.written[name] = version + 1
		}
		delete(c.leases, name)
		return true
	})
}

// wrote notes a status that this node has written, until the API server sends it.
func (c *Cluster) wrote(s *Service, status []netip.Addr) {
	c.Change(func() bool {
		if c.services[s.Name] == s {
			now := *s
			now.Status, now.Foreign = status, false
			c.services[s.Name] = &now
		}
		return true
	})
}

// renewed notes a version of a session's Lease that was read, and reports whether the session goes on, by a renewal of which this node did not know
// when it planned.
func (c *Cluster) renewed(id, version string, now time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	name := SessionName(NodeOf(id))
	s, known := c.sessions[name]
	if known && s.ID == id && s.Version == version {
		return now < s.ended()
	}
	if !known {
		s.Lasts = Lasts
	}
	c.sessions[name] = Session{ID: id, Version: version, Seen: now, Lasts: s.Lasts}
	return true
}

// forget forgets which Leases this node has written, because its session is another one. After a loss of the API server's data the
// versions begin anew.
func (c *Cluster) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.written)
}

// world returns what is known, and whether every kind has been listed.
func (c *Cluster) world(session string, now time.Duration) (w World, complete bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w = World{Self: c.node, Session: session, Now: now, Classes: c.classes, Pools: c.pools, Services: maps.Clone(c.services), Sessions: map[string]Session{}}
	w.Nodes = slices.SortedFunc(maps.Values(c.nodes), func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	w.Leases = slices.Collect(maps.Values(c.leases))
	for _, s := range c.sessions {
		w.Sessions[s.ID] = s
	}
	for _, ranges := range c.cidrs {
		w.Reserved = append(w.Reserved, ranges...)
	}
	w.Ready = c.ready()
	return w, c.Complete()
}

// ready returns the nodes that have ready endpoints of Services with externalTrafficPolicy Local.
func (c *Cluster) ready() map[Key][]string {
	of := map[services.Name][]*services.Slice{}
	for _, s := range c.slices {
		if svc := c.services[s.Service]; svc != nil && svc.Local {
			of[s.Service] = append(of[s.Service], s)
		}
	}
	out := map[Key][]string{}
	for name, list := range of {
		for _, ipv6 := range c.services[name].Families {
			out[Key{name, ipv6}] = services.ReadyNodes(list, ipv6)
		}
	}
	return out
}
