// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/patchbay-net/patchbay/daemons/internal/doubt"
	"github.com/patchbay-net/patchbay/daemons/node/lan"
	"github.com/patchbay-net/patchbay/daemons/node/plan"
)

// grace is how long a Node stays in the mirror if a list lacks it and no event deleted it: kubelets do not register
// such a Node again by themselves. It is also how long a deleted Node is remembered. If that Node is registered again
// it gets other podCIDRs, and pods with addresses of the former ones may still run.
const grace = time.Hour

// mirror is the agent's copy of the Nodes. It is the store of a Reflector, so it can distinguish a
// Node that an event deleted from a Node that a list lacks (daemons/internal/doubt).
type mirror struct {
	self    string // this Node's name
	changed func()
	now     func() time.Time

	mu           sync.Mutex
	nodes        doubt.Table[plan.Node] // by name
	unregistered bool                   // the API server has no Node of this name
	synced       time.Time              // when the API server last told something that counts
	condemned    bool                   // this agent's Node has lan.ToBeDeleted
}

// condemn notes whether a Node is about to be deleted.
func (m *mirror) condemn(o *corev1.Node) {
	if o.Name == m.self {
		m.condemned = slices.ContainsFunc(o.Spec.Taints, func(t corev1.Taint) bool { return t.Key == lan.ToBeDeleted })
	}
}

// eligible reports whether load balancers may send packets to this Node: it exists, and is not about to be deleted.
func (m *mirror) eligible() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, known := m.nodes.Get(m.self)
	return known && !m.unregistered && !n.Leaving && !m.condemned
}

var _ cache.TransformingStore = (*mirror)(nil)

// Add stores a Node.
func (m *mirror) Add(obj any) error { return m.Update(obj) }

// Update stores a changed Node.
func (m *mirror) Update(obj any) error {
	o, ok := obj.(*corev1.Node)
	if !ok {
		return fmt.Errorf("a Node is a %T", obj)
	}
	m.mu.Lock()
	changed := m.put(trim(o))
	m.condemn(o)
	m.synced = m.now()
	m.mu.Unlock()
	if changed {
		m.changed()
	}
	return nil
}

// put stores a Node, and reports whether it differs from the stored one.
func (m *mirror) put(n plan.Node) (changed bool) {
	old, known := m.nodes.Get(n.Name)
	if known {
		if n = n.After(old); n.Name != m.self && n.Annotations[plan.KeyAnnotation] != old.Annotations[plan.KeyAnnotation] {
			n = m.keepKey(n, old)
		}
	} else {
		old, _ = m.nodes.Recall(n.Name)
	}
	changed = m.nodes.Put(n.Name, n.Recalling(old))
	if n.Name == m.self && m.unregistered {
		m.unregistered, changed = false, true
	}
	return changed
}

// keepKey refuses a key that another Node already has.
func (m *mirror) keepKey(n, old plan.Node) plan.Node {
	key := n.Annotations[plan.KeyAnnotation]
	for name, other := range m.nodes.AllByKey() {
		if key != "" && name != n.Name && other.Annotations[plan.KeyAnnotation] == key {
			return n.KeepKey(old, name)
		}
	}
	return n
}

// published returns the WireGuard key in this Node's annotation. known is false until the API
// server has sent this Node, and after this Node was deleted.
func (m *mirror) published() (key string, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, known := m.nodes.Get(m.self)
	return n.Annotations[plan.KeyAnnotation], known && !m.unregistered && !m.synced.IsZero()
}

// Delete removes a deleted Node, but never this agent's Node, because its pods still run.
func (m *mirror) Delete(obj any) error {
	o, ok := obj.(*corev1.Node)
	if !ok {
		return fmt.Errorf("a Node is a %T", obj)
	}
	m.mu.Lock()
	m.synced = m.now()
	if o.Name == m.self {
		m.unregistered = true
	} else {
		m.nodes.Delete(o.Name)
	}
	m.mu.Unlock()
	m.changed()
	return nil
}

// Replace stores a list of all Nodes. The API server never says whether a list follows the last one, so the
// Nodes that it lacks are missing. If the list lacks this agent's Node, it cannot be complete: then no other Node
// becomes missing, and the Reflector lists again after the error.
func (m *mirror) Replace(list []any, _ string) error {
	m.mu.Lock()
	changed, reading := false, map[string]plan.Node{}
	for _, obj := range list {
		if o, ok := obj.(*corev1.Node); ok {
			changed = m.put(trim(o)) || changed
			m.condemn(o)
			reading[o.Name], _ = m.nodes.Get(o.Name)
		}
	}
	_, whole := reading[m.self]
	changed = changed || m.unregistered == whole // this agent's Node has come back, or has vanished
	if m.unregistered = !whole; whole {
		changed = m.nodes.Replace(reading, false) || changed || m.synced.IsZero() // publish waits for the first answer
		m.synced = m.now()
	}
	m.mu.Unlock()
	if changed {
		m.changed()
	}
	if !whole {
		return fmt.Errorf("the API server lists %d Nodes and not this one, %s: no Node is removed", len(list), m.self)
	}
	return nil
}

// Resync does nothing, because the agent itself looks at all Nodes regularly.
func (m *mirror) Resync() error { return nil }

// Transformer trims the Nodes of a list that is still being read.
func (m *mirror) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		o, ok := obj.(*corev1.Node)
		if !ok {
			return obj, nil
		}
		n := trim(o)
		out := &corev1.Node{}
		out.Name, out.CreationTimestamp, out.DeletionTimestamp = n.Name, o.CreationTimestamp, o.DeletionTimestamp
		out.UID, out.Annotations, out.Spec.PodCIDRs = o.UID, n.Annotations, n.Pods
		out.Labels, out.Status.Addresses = o.Labels, o.Status.Addresses // for network policies and Services
		out.Spec.Taints = o.Spec.Taints
		return out, nil
	}
}

// view is what a mirror knows at one moment. Nodes are sorted by name.
type view struct {
	nodes        []plan.Node             // the missing ones too
	deleted      []doubt.Past[plan.Node] // deleted lately
	missing      map[string]time.Time    // since when lists lack a Node
	unregistered bool                    // the API server no longer has this agent's Node
	synced       time.Time               // when it last sent something
}

// view returns what is known now. What has been missing for grace is not.
func (m *mirror) view() view {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.nodes.Expire()
	v := view{nodes: m.nodes.All(), deleted: m.nodes.Deleted(), missing: map[string]time.Time{}, unregistered: m.unregistered, synced: m.synced}
	for _, p := range m.nodes.Missing() {
		v.missing[p.Object.Name] = p.At
	}
	for i := range v.nodes {
		_, v.nodes[i].Missing = v.missing[v.nodes[i].Name]
	}
	return v
}

// own returns the InternalIPs of this Node, as far as they can be read.
func (m *mirror) own() (list []netip.Addr) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, _ := m.nodes.Get(m.self)
	for _, text := range n.Addrs {
		if a, err := netip.ParseAddr(text); err == nil {
			list = append(list, a)
		}
	}
	return list
}

// uid returns this Node's uid. If it is not known, uid returns the name, which the kubelet's Events
// use as the uid.
func (m *mirror) uid() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, _ := m.nodes.Get(m.self)
	return cmp.Or(n.UID, m.self)
}
