// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// Closure is the addresses of one attachment, and what an ADD closes for them.
type Closure struct {
	Link    string // on the host, for this attachment alone, at no bridge; "": it has none
	Port    string // of a bridge, for this attachment alone; "": it has none
	Addrs   []netip.Addr
	Close   [2]bool // by direction: a policy selects the pod, so nothing may pass until it is enforced
	Comment string  // begins with the owner (nft.Comment)
}

// Closes returns the directions that an ADD must close for a decision. A decision only names chains, whose
// rules may deny, so a direction with chains must be closed, too.
func Closes(d *policy.Decision) (sides [2]bool) {
	for i, s := range d.Sides {
		sides[i] = selects(s)
	}
	return sides
}

// Elements returns what is closed for an attachment.
func (a *Closure) Elements() (list []nft.Element) {
	for side, closed := range a.Close {
		for _, addr := range a.Addrs {
			if closed {
				list = append(list, nft.Closed(side, addr, a.Comment))
			}
		}
	}
	return list
}

// Close queues what an ADD does: it lets an attachment send only from its own addresses, closes them, and
// opens those directions that no policy closes. It makes the base chains if they are missing and something
// is closed. Only a Load whose program has the pod opens it (Enforcer.Load).
//
// A program may still have a former pod with the same address. If no agent runs, which would load a
// newer program, purge removes the address from everything that programs made.
func Close(fw *nft.Conn, a Closure, purge bool) {
	fw.Add(a.Elements()...)
	fw.Add(a.sources()...)
	checkSources(fw, a.Link != "" || len(a.Elements()) > 0, a.Port != "")
	fw.Queue(&closing{list: []Closure{a}, purge: purge})
}

// Reopen queues the removal of an attachment from what is closed and checked, for a DEL. It does not
// change what another owner closed.
func Reopen(fw *nft.Conn, a Closure) {
	a.Close = [2]bool{true, true}
	fw.Remove(a.Elements()...)
	fw.Remove(a.sources()...)
}

// closing is the part of Close that is not elements of the attachment.
type closing struct {
	list  []Closure
	purge bool
	heavy bool // the plan changes more than elements of attachments
}

// Light reports whether the plan changes only elements of attachments.
func (c *closing) Light() bool { return !c.heavy }

// String describes the work in errors.
func (c *closing) String() string { return "close addresses until network policies are enforced" }

// Needs reports whether the table must exist.
func (c *closing) Needs() bool {
	return slices.ContainsFunc(c.list, func(a Closure) bool { return len(a.Elements()) > 0 })
}

// Merge joins two calls of Close. Each of them would make the base chains.
func (c *closing) Merge(next nft.Extra) (nft.Extra, bool) {
	o, ok := next.(*closing)
	if !ok {
		return nil, false
	}
	return &closing{list: slices.Concat(c.list, o.list), purge: c.purge || o.purge}, true
}

// Plan finds out which parts are missing; in most ADDs none is.
func (c *closing) Plan(fw *nft.Conn) (func(*nftables.Conn) error, error) {
	found, err := fw.Find(c.questions()...)
	if err != nil {
		return nil, err
	}
	var steps []step
	based := uint16(0)
	var stale []netip.Addr
	for _, e := range found {
		switch a, _ := netip.AddrFromSlice(e.Key); {
		case e.Set == nft.SetPolicy:
			based = nft.PolicyNumber(e)
		case ofADDs(e.Set):
			steps = append(steps, removeElements(e.Set, []element{{first: a, last: a}})...)
		default:
			stale = append(stale, a)
		}
	}
	c.heavy = false
	if c.Needs() && based < baseVersion {
		steps, c.heavy = append(makeBase(based), steps...), true
	}
	if len(stale) > 0 {
		more, err := purged(fw, stale)
		if err != nil {
			return nil, err
		}
		steps, c.heavy = append(steps, more...), true
	}
	if len(steps) == 0 || !c.heavy {
		return doing(steps), nil
	}
	return anew(fw, steps)
}

// questions returns the elements that Plan looks for: the version of the base chains, what was closed
// for a former owner of an address or by an earlier ADD and should be open, and the addresses of pods
// that a program knows.
func (c *closing) questions() []nft.Element {
	set, _ := nft.PolicyRevision(0)
	list := []nft.Element{{Set: set.Name, Key: nft.PolicyBase(0).Key}}
	for _, a := range c.list {
		for _, addr := range a.Addrs {
			for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
				if !a.Close[d] {
					list = append(list, nft.Closed(int(d), addr, ""))
				}
			}
			if c.purge {
				list = append(list, nft.PolicyElement(kindLocal+families[familyOf(addr)], addr))
			}
		}
	}
	return list
}

// doing returns the work of steps, or nil if there are none.
func doing(steps []step) func(*nftables.Conn) error {
	if len(steps) == 0 {
		return nil
	}
	return func(enc *nftables.Conn) error { return doAll(enc, steps) }
}

// anew returns the work of steps with a new revision, so that an Enforcer reads the kernel again. The new
// revision is random, because the Enforcer may increase the old one at the same time.
func anew(fw *nft.Conn, steps []step) (func(*nftables.Conn) error, error) {
	was, exists, err := fw.ReadPolicyRevision()
	if err != nil {
		return nil, err
	}
	next := uint16(rand.Uint32())
	if exists && next-was < 1000 {
		next += 1000
	}
	return func(enc *nftables.Conn) error {
		return revise(enc, exists, was, next, func() error { return doAll(enc, steps) })
	}, nil
}

// makeBase returns the steps that make the base chains and what belongs to them, if they are missing or
// have another version.
func makeBase(was uint16) []step {
	p, err := planOf(&state{version: was}, stateOf(&policy.Program{}, true), nil)
	if err != nil {
		panic("enforce: the base chains need no kernel: " + err.Error())
	}
	return slices.Concat(p.prepare, p.switchOver)
}

// purged returns the steps that remove addresses from everything that programs made.
func purged(fw *nft.Conn, stale []netip.Addr) (steps []step, err error) {
	sets, _, err := fw.Policies()
	if err != nil {
		return nil, err
	}
	var where []nft.Element
	for _, a := range stale {
		for _, set := range sets {
			if isV6(set) == a.Is6() && hasPods(set) {
				where = append(where, nft.PolicyElement(set, a))
			}
		}
	}
	found, err := fw.Find(where...)
	for _, e := range found {
		a, _ := netip.AddrFromSlice(e.Key)
		steps = append(steps, removeElements(e.Set, []element{{first: a, last: a}})...)
	}
	return steps, err
}

// hasPods reports whether the elements of a set are addresses of pods that a program has.
func hasPods(set string) bool {
	return isDispatch(set) || strings.HasPrefix(set, kindLocal) || strings.HasPrefix(set, kindPods)
}
