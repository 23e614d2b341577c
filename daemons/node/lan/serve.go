// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package lan

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/services"
)

// serve does what a Service needs: each family has one address, it has an owner, and the status says so.
func (m *maker) serve(s *Service) {
	m.misrequested(s)
	var status []netip.Addr
	writer := ""
	for _, ipv6 := range s.Families {
		key := Key{s.Name, ipv6}
		now := current(s, m.leases[key])
		for _, l := range m.leases[key] {
			m.keep(s, key, l, l == now)
		}
		if now != nil {
			status = append(status, now.Addr)
			if writer == "" && m.alive(now) {
				writer = now.Holder
			}
		}
		m.give(s, key, now)
	}
	if writer != "" && writer == m.Session && (s.Foreign || !slices.Equal(s.Status, status)) {
		m.plan.Acts = append(m.plan.Acts, Act{Verb: Write, Service: s, Status: status})
	}
}

// misrequested says which requests of a Service mean nothing.
func (m *maker) misrequested(s *Service) {
	if s.Wrong != "" {
		m.problem(s, "%s", s.Wrong)
	}
	for _, a := range s.Requested {
		if !slices.Contains(s.Families, a.Is6()) {
			m.problem(s, "it requests %s, and has no cluster IP of %s: change spec.ipFamilies, or request no such address", a, familyName(a.Is6()))
		}
	}
}

func (m *maker) problem(s *Service, format string, args ...any) {
	m.plan.Problems = append(m.plan.Problems, Problem{s.Name, fmt.Sprintf(format, args...)})
}

// current returns the Lease of the address that a family of a Service has, or nil. There are several while the Service moves to an address
// that it requests, and after two nodes have given it one at the same time.
func current(s *Service, list []*Holding) *Holding {
	worth := func(l *Holding) int {
		switch {
		case slices.Contains(s.Requested, l.Addr):
			return 0
		case slices.Contains(s.Status, l.Addr):
			return 1
		}
		return 2
	}
	if len(list) == 0 {
		return nil
	}
	return slices.MinFunc(list, func(a, b *Holding) int {
		return cmp.Or(cmp.Compare(worth(a), worth(b)), a.Created.Compare(b.Created), a.Addr.Compare(b.Addr))
	})
}

// keep says what happens to an address that a Service has.
func (m *maker) keep(s *Service, key Key, l *Holding, now bool) {
	if !now && !slices.Contains(s.Status, l.Addr) {
		m.remove(l)
		return
	}
	list := m.candidates(s, key)
	switch {
	case m.mine(l) && !slices.Contains(list, m.Self):
		m.plan.Session = true // until it is released
		m.act(Release, *l)
	case m.mine(l):
		m.plan.Session = true
		m.plan.Owned++
		if !s.Local || slices.Contains(m.Ready[key], m.Self) {
			m.plan.Announce[l.Addr] = true
		}
	case m.alive(l):
	case m.turn(Take.String()+" "+l.Addr.String(), key, list, NodeOf(l.Holder)):
		m.act(Take, *l)
	}
}

// candidates returns the nodes that may own an address of a Service. With externalTrafficPolicy Local these are nodes with a ready endpoint. As long
// as there is none, any node may own the address, so that the Service has one, but none answers.
func (m *maker) candidates(s *Service, key Key) []string {
	if !s.Local {
		return m.eligible
	}
	near := slices.DeleteFunc(slices.Clone(m.eligible), func(n string) bool { return !slices.Contains(m.Ready[key], n) })
	if len(near) == 0 {
		return m.eligible
	}
	return near
}

// give gives a family of a Service an address, if it needs one or another one.
func (m *maker) give(s *Service, key Key, now *Holding) {
	if s.Wrong != "" {
		return
	}
	a, why := m.choose(s, key, now)
	if why != "" {
		m.problem(s, "%s", why)
	}
	if !a.IsValid() {
		return
	}
	m.used[a] = s.Name // the next Service gets another one, also if another node creates the Lease
	if m.turn(Create.String()+" "+key.String(), key, m.candidates(s, key), "") {
		m.act(Create, Holding{Addr: a, Service: s.Name, UID: s.UID})
	}
}

// choose returns the address that a family of a Service gets instead of the one that it has, or why it gets none.
func (m *maker) choose(s *Service, key Key, now *Holding) (a netip.Addr, why string) {
	r := s.requests(key.IPv6)
	switch {
	case now != nil && (now.Addr == r || !r.IsValid() && m.poolOf(now.Addr) != nil):
		return a, ""
	case r.IsValid():
		if why = m.refused(s, r); why != "" {
			return a, why
		}
		return r, ""
	case now != nil:
		return a, fmt.Sprintf("no pool has its address %s any more, and it keeps it: request another one with %s, or make the Service again", now.Addr, AnnotationAddresses)
	}
	return m.free(s, key)
}

// poolOf returns the pool that has an address, or nil.
func (m *maker) poolOf(a netip.Addr) *Pool {
	for i := range m.Pools {
		if m.Pools[i].has(a) {
			return &m.Pools[i]
		}
	}
	return nil
}

// refused says why a Service does not get the address that it requests.
func (m *maker) refused(s *Service, a netip.Addr) string {
	p := m.poolOf(a)
	owner, taken := m.used[a]
	switch {
	case p == nil:
		return fmt.Sprintf("it requests %s, which no pool has: request another address, or add it to a pool", a)
	case p.Wrong != "":
		return fmt.Sprintf("it requests %s, and %s", a, p.Wrong)
	case !p.serves(s.Name.Namespace):
		return fmt.Sprintf("it requests %s, and the pool %s is not for the namespace %s: request another address", a, p.Name, s.Name.Namespace)
	case s.Pool != "" && s.Pool != p.Name:
		return fmt.Sprintf("it requests %s, which is of the pool %s, and the pool %s: request one of them", a, p.Name, s.Pool)
	case m.reserved(a):
		return fmt.Sprintf("it requests %s, which is of a node, of pods or of cluster IPs: request another address", a)
	case taken && owner != s.Name:
		return fmt.Sprintf("it requests %s, which the Service %s has: Services cannot share an address; request another one, or make one Service of both", a, owner)
	case taken:
		return "" // of a Service of this name that was deleted: its Lease goes first
	}
	return ""
}

// reserved reports whether something else has an address.
func (m *maker) reserved(a netip.Addr) bool {
	in := func(p netip.Prefix) bool { return p.Contains(a) }
	return slices.ContainsFunc(m.Reserved, in) ||
		slices.ContainsFunc(m.Nodes, func(n Node) bool { return slices.ContainsFunc(n.Reserved, in) })
}

// free returns an address for a Service that requests none: the one of its status, which another program may have given it, or the first one
// of the first pool that is free.
func (m *maker) free(s *Service, key Key) (a netip.Addr, why string) {
	for _, a := range s.Status {
		if _, taken := m.used[a]; a.Is6() == key.IPv6 && !taken && m.refused(s, a) == "" {
			return a, ""
		}
	}
	some, other := false, false
	for i := range m.Pools {
		p := &m.Pools[i]
		if p.Wrong != "" || !p.serves(s.Name.Namespace) || p.Name != cmp.Or(s.Pool, p.Name) || p.Manual && s.Pool == "" {
			continue
		}
		some, other = some || p.family(key.IPv6), other || p.family(!key.IPv6)
		if a := m.first(p, key.IPv6); a.IsValid() {
			return a, ""
		}
	}
	switch {
	case some:
		return a, fmt.Sprintf("its pools have no free address of %s: enlarge one, or delete a Service", familyName(key.IPv6))
	case other && s.Prefers:
		return a, "" // one family is enough for it
	}
	return a, fmt.Sprintf("no pool gives it an address of %s: add one to the pools that serve it", familyName(key.IPv6))
}

// mostTried is after how many addresses that are reserved or given a pool counts as full.
const mostTried = 1 << 16

// first returns the first free address of a pool.
func (m *maker) first(p *Pool, ipv6 bool) (none netip.Addr) {
	tried := 0
	for _, r := range p.Ranges {
		for a := r.First; a.Is6() == ipv6 && a.IsValid() && r.Contains(a) && tried < mostTried; a = a.Next() {
			if _, taken := m.used[a]; !taken && !m.reserved(a) {
				return a
			}
			tried++
		}
	}
	return none
}

// rank returns how many candidates come before a node in the order of a key.
func rank(key Key, candidates []string, self string) (n int) {
	own := weight(key, self)
	for _, c := range candidates {
		if w := weight(key, c); w < own || w == own && c < self {
			n++
		}
	}
	return n
}

func weight(key Key, node string) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %s", node, key) //nolint:errcheck // a hash takes all
	return mixed(h.Sum64())
}

// mixed spreads the last bytes that were hashed over all bits (the end of MurmurHash3).
func mixed(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

func keys[V any](m map[services.Name]V) iter.Seq[services.Name] { return maps.Keys(m) }

func compareNames(a, b services.Name) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}
