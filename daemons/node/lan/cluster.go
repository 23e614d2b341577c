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
	"github.com/patchbay-net/patchbay/daemons/internal/losses"
	served "github.com/patchbay-net/patchbay/daemons/node/services"
	"github.com/patchbay-net/patchbay/internal/resident"
	"github.com/patchbay-net/patchbay/internal/services"
)

// Kind is a kind of objects.
type Kind int

// These are the kinds that only this package needs: the copy of Services has the others. The ConfigMap and the Leases are those of Namespace.
const (
	Nodes Kind = iota
	ConfigMaps
	Leases
	kinds // their number
)

// Namespace has the ConfigMap of the pools, and the Leases. Agents may write every Lease in it.
const Namespace = "patchbay-load-balancers"

// PoolsName is the name of the ConfigMap of the pools.
const PoolsName = "pools"

// String returns the name of the API's resource, such as "configmaps".
func (k Kind) String() string { return [...]string{"nodes", "configmaps", "leases"}[k] }

// Cluster is a node's copy of the API's objects. Of an object of which a part cannot be read, the rest counts.
type Cluster struct {
	*copies.Copies[Kind]
	of      *served.Cluster // all Services, their slices, and ServiceCIDRs
	node    string
	classes Classes
	now     func() time.Duration
	changed chan struct{} // has room for one signal

	mu       sync.Mutex
	services map[services.Name]*Service // of type LoadBalancer
	nodes    map[string]Node
	pools    []Pool
	leases   map[string]Holding // by the names of the Leases
	sessions map[string]Session // by the names of the Leases

	// written has the versions of the Leases that this node wrote or removed in this session. What the API server sends of
	// before is old: this node may have given the address away since.
	written map[string]uint64
}

// NewCluster returns the copy of a node's agent, beside that of Services, which must have had no list. alone means that no program is made of the latter.
func NewCluster(node string, c Classes, now func() time.Duration, of *served.Cluster, alone bool) *Cluster {
	cl := &Cluster{
		node: node, classes: c, now: now, changed: make(chan struct{}, 1), of: of,
		services: map[services.Name]*Service{}, nodes: map[string]Node{}, leases: map[string]Holding{}, sessions: map[string]Session{}, written: map[string]uint64{},
	}
	cl.Copies = copies.New(kinds, copies.Single[Kind, services.Name, any]{
		Name: func(namespace, name string) services.Name { return services.Name{Namespace: namespace, Name: name} },
		Read: read, Put: cl.store, Remove: cl.drop, Names: cl.names,
	}.Reader(), &cl.mu, func() { resident.Signal(cl.changed) })
	of.Share(served.Beside{Read: readService, Put: cl.putService, Remove: cl.removeService, Changed: cl.Wake, Alone: alone})
	return cl
}

func readService(object []byte) any {
	s, _ := ParseService(object) // what can be read
	return &s
}

func (c *Cluster) putService(name services.Name, value any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.services[name], _ = value.(*Service)
}

func (c *Cluster) removeService(name services.Name) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.services, name)
}

// ofServices are the kinds that the copy of Services follows for this one.
func ofServices() []served.Kind {
	return []served.Kind{served.Services, served.EndpointSlices, served.ServiceCIDRs}
}

// Losses returns the kinds that are not followed.
func (c *Cluster) Losses() []losses.Loss {
	return slices.Concat(slices.DeleteFunc(c.of.Losses(), func(l losses.Loss) bool { return l.Kind == served.Nodes }), c.Copies.Losses())
}

// complete reports whether all kinds have been listed.
func (c *Cluster) complete() bool {
	return c.Complete() && !slices.ContainsFunc(ofServices(), func(k served.Kind) bool { return !c.of.Listed(k) })
}

var errUnnamed = errors.New("it has no name")

// read reads an object: a Node, []Pool, Holding, Session or nil. It returns an error only if the name cannot be read.
func read(k Kind, object []byte) (name services.Name, value any, err error) {
	switch k {
	case Nodes:
		n, wrong := parseNode(object)
		name.Name, value, err = n.Name, n, wrong
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
	case Nodes:
		plain(maps.Keys(c.nodes), "")
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
	case Node:
		c.nodes[v.Name] = v
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
	case Nodes:
		delete(c.nodes, name.Name)
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
	complete = c.complete() // before the rest is read
	w = c.own(session, now)
	w.Reserved, w.Ready = c.of.Ranges(), c.ready(w.Services)
	return w, complete
}

// own returns what this copy has of the world.
func (c *Cluster) own(session string, now time.Duration) World {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := World{Self: c.node, Session: session, Now: now, Classes: c.classes, Pools: c.pools, Services: maps.Clone(c.services), Sessions: map[string]Session{}}
	w.Nodes = slices.SortedFunc(maps.Values(c.nodes), func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	w.Leases = slices.Collect(maps.Values(c.leases))
	for _, s := range c.sessions {
		w.Sessions[s.ID] = s
	}
	return w
}

// ready returns the nodes that have ready endpoints of Services with externalTrafficPolicy Local.
func (c *Cluster) ready(list map[services.Name]*Service) map[Key][]string {
	out := map[Key][]string{}
	for name, s := range list {
		if !s.Local {
			continue
		}
		_, endpoints := c.of.Of(name)
		for _, ipv6 := range s.Families {
			out[Key{name, ipv6}] = services.ReadyNodes(endpoints, ipv6)
		}
	}
	return out
}
