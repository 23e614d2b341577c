// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"
)

// holder says that a pod has an address.
type holder struct {
	addr     netip.Addr
	pod      *Pod
	identity *Identity // nil: no selector of a peer matches the pod
}

// readPods gives each pod's address its identity. Two pods may have one address for a short
// time, when the API still shows a pod that is gone.
func (c *compiler) readPods(q *Sequence) {
	holders := make([]holder, 0, c.addresses())
	identify := c.identifyAll()
	for i := range c.state.Pods {
		p := &c.state.Pods[i]
		if !p.Enforced() || len(p.Addresses) == 0 {
			continue
		}
		id := identify(p)
		for _, a := range p.Addresses {
			holders = append(holders, holder{a.Unmap(), p, id})
		}
	}
	c.number()
	c.owned = make(map[*Pod][]netip.Addr)
	c.out.Addresses = make([]Address, 0, len(holders))
	var last *holder
	for _, i := range q.sort(len(holders), func(a, b int32) int { return holders[a].compare(&holders[b]) }) {
		h := &holders[i]
		if last == nil || last.addr != h.addr {
			c.own(h)
		} else if !h.pod.Leaving && last.pod != h.pod {
			c.problem("pod "+h.pod.path(), "pod "+last.pod.path()+" has its address "+h.addr.String()+" too, and is newer")
		}
		last = h
	}
}

// addresses returns the number of addresses at most.
func (c *compiler) addresses() (n int) {
	for i := range c.state.Pods {
		n += len(c.state.Pods[i].Addresses)
	}
	return n
}

// compare sorts by address. If two pods have one address, the first of them gets it: the pod that stays,
// or the newer one.
func (h *holder) compare(o *holder) int {
	if by := h.addr.Compare(o.addr); by != 0 || h.pod == o.pod {
		return by
	}
	switch {
	case h.pod.Leaving && !o.pod.Leaving:
		return 1
	case o.pod.Leaving && !h.pod.Leaving:
		return -1
	}
	return cmp.Or(o.pod.Created.Compare(h.pod.Created), strings.Compare(h.pod.path(), o.pod.path()))
}

func (c *compiler) own(h *holder) {
	if h.identity != nil {
		c.out.Addresses = append(c.out.Addresses, Address{h.addr, h.identity.Number})
	}
	if h.pod.Node == c.state.Node {
		c.owned[h.pod] = append(c.owned[h.pod], h.addr)
	}
}

// workload identifies pods that share the memory of their labels and ports, as those of one workload do.
// Such pods have one identity.
type workload struct {
	namespace    string
	labels       *Label
	ports        *Port
	keys, number int
}

func workloadOf(p *Pod) workload {
	w := workload{namespace: p.Namespace, keys: len(p.Labels), number: len(p.Ports)}
	if w.keys > 0 {
		w.labels = &p.Labels[0]
	}
	if w.number > 0 {
		w.ports = &p.Ports[0]
	}
	return w
}

// identifyAll returns a function that works like identify. It looks at each workload only once.
func (c *compiler) identifyAll() func(p *Pod) *Identity {
	known := make(map[workload]*Identity)
	return func(p *Pod) *Identity {
		if p.Unknown {
			return nil
		}
		w := workloadOf(p)
		id := known[w]
		if id == nil {
			id = c.identify(p)
			known[w] = id
		}
		return id
	}
}

// identify returns the identity of a pod, without its number.
func (c *compiler) identify(p *Pod) *Identity {
	if p.Unknown {
		return nil
	}
	ns := c.namespace(p.Namespace)
	seen := Identity{Namespace: p.Namespace}
	for _, l := range p.Labels {
		if _, looked := slices.BinarySearch(ns.keys, l.Key); looked {
			seen.Labels = append(seen.Labels, l)
		}
	}
	for _, port := range p.Ports {
		if _, looked := slices.BinarySearch(c.ports, port.Name); looked {
			seen.Ports = append(seen.Ports, port)
		}
	}
	slices.SortFunc(seen.Ports, comparePorts)
	seen.Ports = slices.Compact(seen.Ports)
	text := seen.text()
	if ns.byText[text] == nil {
		ns.byText[text] = &seen
	}
	return ns.byText[text]
}

func comparePorts(a, b Port) int {
	return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Number, b.Number))
}

// text returns "shop{app=web} http=8080/tcp". The number is a hash of it.
func (id *Identity) text() string {
	s := id.Namespace + "{" + id.Labels.String() + "}"
	for _, p := range id.Ports {
		s += " " + p.String()
	}
	return s
}

// number gives the identities their numbers, in the order of their texts.
func (c *compiler) number() {
	var texts []string
	all := make(map[string]*Identity)
	for _, ns := range c.namespaces {
		for text, id := range ns.byText {
			texts = append(texts, text)
			all[text] = id
			ns.identities = append(ns.identities, id)
		}
	}
	slices.Sort(texts)
	used := make(map[Number]bool, len(texts))
	for _, text := range texts {
		n := hash(text)
		for n == 0 || used[n] {
			n++
		}
		used[n] = true
		all[text].Number = n
		c.out.Identities = append(c.out.Identities, *all[text])
	}
}

func hash(text string) Number {
	h := fnv.New32a()
	_, _ = h.Write([]byte(text)) // never fails
	return Number(h.Sum32())
}
