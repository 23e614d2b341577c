// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/policy"
)

// Attached is an attachment of this node to whose addresses policies apply. Its ADD recorded it, so
// it is known seconds before the API shows its addresses, and has those that the API never shows.
type Attached struct {
	Namespace, Name string
	UID             string        // as the container runtime passed it
	Labels          policy.Labels // from the configuration of the network; nil: those of the pod in the API
	Addresses       []netip.Addr
}

// Attach stores the attachments of this node, which the next states have. These rules apply:
//
//   - A pod of this node in the API gets the addresses of the attachments with its UID.
//   - A static pod has another UID in the API. It is known by its name and one of its addresses.
//   - Any other attachment becomes a pod, Unknown if the configuration gave no labels.
//   - An address of an attachment belongs to no other pod: if the API shows one, that pod is old.
func (c *Cluster) Attach(list []Attached) {
	list = slices.DeleteFunc(slices.Clone(list), func(a Attached) bool { return a.Namespace == "" || len(a.Addresses) == 0 })
	slices.SortFunc(list, Attached.compare)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.attached = list
}

// Local stores the addresses of this node, which the next states have, and reports whether they differ from those
// before.
func (c *Cluster) Local(list []netip.Addr) (changed bool) {
	list = slices.Clone(list)
	slices.SortFunc(list, netip.Addr.Compare)
	c.mu.Lock()
	defer c.mu.Unlock()
	changed = !slices.Equal(list, c.local)
	c.local = list
	return changed
}

func (a Attached) compare(b Attached) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name), strings.Compare(a.UID, b.UID), a.Addresses[0].Compare(b.Addresses[0]))
}

// attach returns a state's pods with the attachments. The result begins with pods, in the
// same order, and the attachments follow. attach changes neither pods nor their addresses in place.
func (c *Cluster) attach(pods []policy.Pod) []policy.Pod {
	if len(c.attached) == 0 {
		return pods
	}
	m := merger{cluster: c, pods: pods, byUID: make(map[string]int), made: make(map[[3]string]int), names: make(map[key]bool), holders: make(map[netip.Addr][]int)}
	for i := range pods {
		if uid := pods[i].UID; uid != "" {
			m.byUID[uid] = i
		}
	}
	for i := range c.attached {
		a := &c.attached[i]
		at := m.find(a)
		for _, addr := range a.Addresses {
			m.holders[addr] = append(m.holders[addr], at)
		}
	}
	m.give()
	return m.pods
}

// merger gives the addresses of attachments to their pods.
type merger struct {
	cluster *Cluster
	pods    []policy.Pod
	copied  bool // pods is no longer the table's list
	byUID   map[string]int
	made    map[[3]string]int    // pods that the API does not have, by namespace, name and UID
	names   map[key]bool         // of the pods that were made
	holders map[netip.Addr][]int // two, if one attachment is dead and not yet removed
}

// find returns the index of an attachment's pod, and makes a pod if there is none.
func (m *merger) find(a *Attached) int {
	if a.Labels != nil {
		return m.make(a)
	}
	if at, ok := m.byUID[a.UID]; ok {
		return at
	}
	if at, ok := m.cluster.pods.at[key{a.Namespace, a.Name}]; ok && m.static(&m.pods[at], a) {
		return at
	}
	id := [3]string{a.Namespace, a.Name, a.UID}
	at, ok := m.made[id]
	if !ok {
		at = m.make(a)
		m.made[id] = at
	}
	return at
}

// static reports whether an attachment is that of a static pod, whose UID at the runtime is a hash without
// hyphens, or comes from a runtime that passes no UID.
func (m *merger) static(p *policy.Pod, a *Attached) bool {
	return p.Node == m.cluster.node && !p.Leaving && !strings.Contains(a.UID, "-") &&
		slices.ContainsFunc(a.Addresses, func(addr netip.Addr) bool { return slices.Contains(p.Addresses, addr) })
}

// make adds a pod for an attachment. Two pods of this node never have the same name.
func (m *merger) make(a *Attached) int {
	name := cmp.Or(a.Name, a.Addresses[0].String())
	if m.hasPod(a.Namespace, name) {
		name += " " + a.Addresses[0].String()
	}
	m.names[key{a.Namespace, name}] = true
	m.copied = true // append copies the list, because its capacity is its length
	m.pods = append(m.pods, policy.Pod{Namespace: a.Namespace, Name: name, Node: m.cluster.node, Labels: a.Labels, Unknown: a.Labels == nil})
	return len(m.pods) - 1
}

func (m *merger) hasPod(namespace, name string) bool {
	k := key{namespace, name}
	at, known := m.cluster.pods.at[k]
	return m.names[k] || known && m.pods[at].Node == m.cluster.node
}

// give makes each address of an attachment that of its pod alone.
func (m *merger) give() {
	for i := range m.pods {
		have := m.pods[i].Addresses
		ofOther := func(a netip.Addr) bool {
			holders, attached := m.holders[a]
			return attached && !slices.Contains(holders, i)
		}
		if slices.ContainsFunc(have, ofOther) {
			m.set(i, slices.DeleteFunc(slices.Clone(have), ofOther))
		}
	}
	for i := range m.cluster.attached {
		for _, addr := range m.cluster.attached[i].Addresses {
			for _, at := range m.holders[addr] {
				if have := m.pods[at].Addresses; !slices.Contains(have, addr) {
					m.set(at, append(slices.Clip(have), addr))
				}
			}
		}
	}
}

// set gives a pod other addresses. Most programs need none, so only the first call copies the list.
func (m *merger) set(at int, addrs []netip.Addr) {
	if !m.copied {
		m.pods, m.copied = slices.Clone(m.pods), true
	}
	m.pods[at].Addresses = addrs
}
