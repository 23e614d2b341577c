// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package lan

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/internal/services"
)

// World is what one node knows at one moment.
type World struct {
	Self     string        // this node
	Session  string        // its session; "": it has none
	Now      time.Duration // by this node's clock
	Classes  Classes
	Pools    []Pool
	Reserved []netip.Prefix // besides those of the Nodes: ServiceCIDRs
	Nodes    []Node
	Services map[services.Name]*Service
	Ready    map[Key][]string // nodes with a ready endpoint
	Leases   []Holding
	Sessions map[string]Session // by ID
}

// Classes says which Services get addresses besides those of the class Class.
type Classes struct{ Unclassed bool }

// Key is a family of a Service, which gets one address.
type Key struct {
	Service services.Name
	IPv6    bool
}

// String returns "shop/web IPv4".
func (k Key) String() string { return k.Service.String() + " " + familyName(k.IPv6) }

func familyName(ipv6 bool) string {
	if ipv6 {
		return "IPv6"
	}
	return "IPv4"
}

// Plan is what a node has to do now.
type Plan struct {
	Session  bool                // it needs a session, and must renew it
	Announce map[netip.Addr]bool // the addresses for which it answers, if its session has not ended
	Owned    int                 // addresses that it owns, with those for which it must not answer
	Acts     []Act
	Problems []Problem     // sorted
	Next     time.Duration // when to make the next plan although nothing has changed; 0: never
}

// Problem is something that an operator must correct. If Service is empty, it concerns the pools.
type Problem struct {
	Service services.Name
	Text    string
}

// Verb is what an Act does.
type Verb int

// These are the verbs.
const (
	Create Verb = iota // the Lease of an address, so that a Service has it and this node owns it
	Take               // make this node the owner
	Release
	Remove // the Lease, so that the address is free
	Write  // status.loadBalancer of a Service
)

// String returns the verb.
func (v Verb) String() string { return [...]string{"create", "take", "release", "remove", "write"}[v] }

// Act is a request to the API server. Each names the version of the object that it changes, so it fails if that has changed.
type Act struct {
	Verb    Verb
	Holding Holding // as it is to be; with Remove, as it is

	// Doubt is the session of another node that has ended, as it seems. Before the act the API server must be asked once more.
	Doubt string

	Service *Service     // with Write
	Status  []netip.Addr // with Write
}

// Turns are the times since when something waits for an owner, by what it is. They go from plan to plan.
type Turns map[string]time.Duration

// step is how much longer than the one before each node waits; after mostSteps they wait no longer.
const (
	step      = 100 * time.Millisecond
	mostSteps = 3
)

// maker makes a plan.
type maker struct {
	*World
	plan       Plan
	old, turns Turns
	eligible   []string // nodes that may own addresses
	leases     map[Key][]*Holding
	used       map[netip.Addr]services.Name
}

// Make returns the plan of a node, and when what waits began to. It changes nothing of what it gets.
func Make(w *World, turns Turns) (Plan, Turns) {
	m := &maker{World: w, old: turns, turns: Turns{}, leases: map[Key][]*Holding{}, used: map[netip.Addr]services.Name{}}
	m.plan.Announce = map[netip.Addr]bool{}
	for _, n := range w.Nodes {
		if !n.Excluded {
			m.eligible = append(m.eligible, n.Name)
		}
	}
	m.sort()
	for _, name := range slices.SortedFunc(keys(w.Services), compareNames) {
		if s := w.Services[name]; m.ours(s) {
			m.serve(s)
		}
	}
	m.pools()
	slices.SortFunc(m.plan.Problems, func(a, b Problem) int {
		return cmp.Or(compareNames(a.Service, b.Service), strings.Compare(a.Text, b.Text))
	})
	return m.plan, m.turns
}

// ours reports whether a Service gets addresses.
func (m *maker) ours(s *Service) bool {
	if s == nil || !s.Balanced {
		return false
	}
	if s.Class == nil {
		return m.Classes.Unclassed
	}
	return *s.Class == Class
}

// sort finds which Leases belong to Services, and removes the others.
func (m *maker) sort() {
	list := slices.Clone(m.Leases)
	slices.SortFunc(list, func(a, b Holding) int { return a.Addr.Compare(b.Addr) })
	for i := range list {
		l := &list[i]
		m.used[l.Addr] = l.Service
		key := Key{l.Service, l.Addr.Is6()}
		if s := m.Services[l.Service]; m.ours(s) && s.UID == l.UID && slices.Contains(s.Families, key.IPv6) {
			m.leases[key] = append(m.leases[key], l)
			continue
		}
		m.remove(l)
	}
}

// mine reports whether this node owns an address.
func (m *maker) mine(l *Holding) bool { return l.Holder != "" && l.Holder == m.Session }

// alive reports whether any node owns an address.
func (m *maker) alive(l *Holding) bool {
	if l.Holder == "" || NodeOf(l.Holder) == m.Self {
		return m.mine(l)
	}
	s, ok := m.Sessions[l.Holder]
	if !ok || m.Now >= s.ended() {
		return false
	}
	m.wake(s.ended())
	return true
}

// wake makes the next plan come at a time, or before it.
func (m *maker) wake(at time.Duration) {
	if m.plan.Next == 0 || at < m.plan.Next {
		m.plan.Next = at
	}
}

// act adds an act on a Lease, which concerns its last owner if there was one.
func (m *maker) act(v Verb, l Holding) {
	a := Act{Verb: v, Holding: l}
	if l.Holder != "" && NodeOf(l.Holder) != m.Self {
		a.Doubt = l.Holder
	}
	if v == Take || v == Create {
		a.Holding.Holder = m.Session
	}
	if v == Release {
		a.Holding.Holder = ""
	}
	m.plan.Acts = append(m.plan.Acts, a)
}

// turn reports whether it is for this node to do something for a key that any of the candidates may do. gone is the node that did it before.
func (m *maker) turn(job string, key Key, candidates []string, gone string) bool {
	candidates = slices.DeleteFunc(slices.Clone(candidates), func(n string) bool { return n == gone && n != m.Self })
	if !slices.Contains(candidates, m.Self) {
		return false
	}
	since, waits := m.old[job]
	if !waits {
		since = m.Now
	}
	m.turns[job] = since
	if due := since + step*time.Duration(min(rank(key, candidates, m.Self), mostSteps)); m.Now < due {
		m.wake(due)
		return false
	}
	m.plan.Session = true
	return m.Session != ""
}

// remove makes an address free that no Service has any more.
func (m *maker) remove(l *Holding) {
	switch {
	case m.mine(l):
		m.plan.Session = true // until it is removed
		m.act(Remove, *l)
	case m.alive(l): // its owner does it
	case m.turn(Remove.String()+" "+l.Addr.String(), Key{l.Service, l.Addr.Is6()}, m.eligible, NodeOf(l.Holder)):
		m.act(Remove, *l)
	}
}

// pools says what is wrong with the pools.
func (m *maker) pools() {
	for i := range m.Pools {
		if p := &m.Pools[i]; p.Wrong != "" {
			m.plan.Problems = append(m.plan.Problems, Problem{Text: p.Wrong})
		}
	}
}
