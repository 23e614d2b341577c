// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/patchbay-net/patchbay/node/plan"
)

// grace is how long a Node stays in the mirror if a list lacks it and no event deleted it. An API
// server that was restored from a backup may lack Nodes whose pods run, and kubelets do not
// register such Nodes again by themselves. A route to a Node that no longer exists does no harm.
const grace = time.Hour

// mirror is the agent's copy of the Nodes. It is the store of a Reflector, so it can distinguish a
// Node that an event deleted from a Node that a list lacks.
type mirror struct {
	self    string // this Node's name
	changed func()
	now     func() time.Time

	mu     sync.Mutex
	nodes  map[string]plan.Node
	since  map[string]time.Time // when a missing Node was first missing
	left   map[string]left      // Nodes that were deleted lately
	gone   bool                 // the API server has no Node of this name
	synced time.Time            // when the API server last told something that counts
}

// left is a Node that was deleted, and when. If the Node is registered again it gets other podCIDRs,
// and pods with addresses of the former ones may still run.
type left struct {
	Node plan.Node `json:"node"`
	At   time.Time `json:"deleted"`
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
	m.synced = m.now()
	m.mu.Unlock()
	if changed {
		m.changed()
	}
	return nil
}

// put stores a Node, and reports whether it differs from the stored one.
func (m *mirror) put(n plan.Node) (changed bool) {
	old, known := m.nodes[n.Name]
	if known {
		if n = n.After(old); n.Name != m.self && n.Annotations[plan.KeyAnnotation] != old.Annotations[plan.KeyAnnotation] {
			n = m.keepKey(n, old)
		}
	}
	if !known {
		old = m.left[n.Name].Node
	}
	n = n.Recalling(old)
	m.nodes[n.Name] = n
	delete(m.since, n.Name)
	delete(m.left, n.Name)
	if n.Name == m.self && m.gone {
		m.gone, changed = false, true
	}
	return changed || !known || !reflect.DeepEqual(old, n)
}

// keepKey refuses a key that another Node already has.
func (m *mirror) keepKey(n, old plan.Node) plan.Node {
	key := n.Annotations[plan.KeyAnnotation]
	for name, other := range m.nodes {
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
	n, known := m.nodes[m.self]
	return n.Annotations[plan.KeyAnnotation], known && !m.gone && !m.synced.IsZero()
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
		m.gone = true
	} else if n, known := m.nodes[o.Name]; known {
		m.left[o.Name] = left{n, m.now()}
		delete(m.nodes, o.Name)
		delete(m.since, o.Name)
	}
	m.mu.Unlock()
	m.changed()
	return nil
}

// Replace stores a list of all Nodes. Nodes that the list lacks are marked as missing, and stay for
// a while. If the list lacks this agent's Node, it cannot be complete: Replace marks no Node, and
// returns an error so that the Reflector lists again.
func (m *mirror) Replace(list []any, _ string) error {
	m.mu.Lock()
	changed, there := false, map[string]bool{}
	for _, obj := range list {
		if o, ok := obj.(*corev1.Node); ok {
			there[o.Name] = true
			changed = m.put(trim(o)) || changed
		}
	}
	whole := there[m.self]
	changed = changed || m.gone == whole
	if m.gone = !whole; whole {
		changed = m.lack(there) || changed || m.synced.IsZero() // publish waits for the first answer
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

// lack marks the Nodes that a list lacks as missing.
func (m *mirror) lack(there map[string]bool) (changed bool) {
	for name, n := range m.nodes {
		if there[name] || n.Missing && !m.since[name].IsZero() {
			continue
		}
		changed = changed || !n.Missing
		n.Missing = true
		m.nodes[name], m.since[name] = n, m.now()
	}
	return changed
}

// expire removes Nodes that were missing for too long, and forgets those that were deleted.
func (m *mirror) expire() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, since := range m.since {
		if m.now().Sub(since) >= grace {
			delete(m.nodes, name)
			delete(m.since, name)
		}
	}
	maps.DeleteFunc(m.left, func(_ string, l left) bool { return m.now().Sub(l.At) >= grace })
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
		out.Labels, out.Status.Addresses = o.Labels, o.Status.Addresses // for network policies
		return out, nil
	}
}

// view is what a mirror knows at one moment.
type view struct {
	nodes   []plan.Node          // sorted by name
	left    []left               // likewise
	missing map[string]time.Time // since when lists lack a Node
	gone    bool                 // the API server no longer has this agent's Node
	synced  time.Time            // when it last sent something
}

func (m *mirror) view() view {
	m.mu.Lock()
	defer m.mu.Unlock()
	return view{
		nodes:   slices.SortedFunc(maps.Values(m.nodes), func(a, b plan.Node) int { return strings.Compare(a.Name, b.Name) }),
		left:    slices.SortedFunc(maps.Values(m.left), func(a, b left) int { return strings.Compare(a.Node.Name, b.Node.Name) }),
		missing: maps.Clone(m.since),
		gone:    m.gone,
		synced:  m.synced,
	}
}

// uid returns this Node's uid. If it is not known, uid returns the name, which the kubelet's Events
// use as the uid.
func (m *mirror) uid() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if uid := m.nodes[m.self].UID; uid != "" {
		return uid
	}
	return m.self
}
