// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"
	"slices"
)

// makePlan reads everything that the queue concerns in one system call and decides what to do.
func (c *Conn) makePlan() (plan, error) {
	families := c.tables()
	what := make([]query, 0, len(families)+len(c.queue)+8)
	for _, f := range families {
		what = append(what, schemaLookup(f))
	}
	for _, o := range c.queue {
		spec, ok := specOf(o.el.Set)
		if !ok || len(o.el.Key) != concatLen(spec.key) || len(o.el.Data) != concatLen(spec.data) {
			return plan{}, fmt.Errorf("%s: no such set, or not of its type", o)
		}
		what = append(what, spec.element(o.el.Key))
	}
	demand := c.wanted()
	for _, s := range demand {
		what = append(what, s.query())
	}
	got, err := c.get(what)
	if err != nil {
		return plan{}, err
	}
	var p plan
	for i, f := range families {
		s, err := stateFrom(f, got[i])
		if err != nil {
			return plan{}, err
		}
		if s.present && s.schema < Schema() {
			if s.sets, err = c.setNames(f); err != nil {
				return plan{}, err
			}
		}
		p.tables = append(p.tables, s)
	}
	got = got[len(families):]
	for i, s := range demand {
		if !got[len(c.queue)+i].found {
			p.demand = append(p.demand, s)
		}
	}
	err = c.decide(&p, got[:len(c.queue)])
	return p, err
}

// wanted returns the sets on demand to which elements are added, each once.
func (c *Conn) wanted() (specs []setSpec) {
	for _, o := range c.queue {
		spec, _ := specOf(o.el.Set)
		same := func(s setSpec) bool { return s.name == spec.name }
		if spec.onDemand && !o.remove && !slices.ContainsFunc(specs, same) {
			specs = append(specs, spec)
		}
	}
	return specs
}

// decide compares the queued operations with the kernel's state and fills the plan.
func (c *Conn) decide(p *plan, got []found) error {
	var ranges []op
	p.reserve(c)
	for i, o := range c.queue {
		spec, _ := specOf(o.el.Set)
		switch {
		case !spec.interval:
			if err := c.element(p, spec, o, got[i]); err != nil {
				return err
			}
		case got[i].leaving:
			p.waiting = append(p.waiting, got[i].Element)
		case !o.settled(got[i]):
			ranges = append(ranges, o)
		}
	}
	if err := c.networks(p, ranges); err != nil {
		return err
	}
	return c.planExtras(p)
}

// reserve makes room for the queue's elements, and finds out whether removals may expire. Asking for each of
// thousands of elements, or copying a list each time it grows, would cost more than sending them.
func (p *plan) reserve(c *Conn) {
	removals := 0
	for _, o := range c.queue {
		if o.remove {
			removals++
		}
	}
	p.add = make([]Element, 0, len(c.queue)-removals)
	if p.expires = removals > 0 && c.mayExpire(); p.expires {
		p.expire = make([]Element, 0, removals)
	}
}

// element decides one operation on an attachment's element.
func (c *Conn) element(p *plan, spec setSpec, o op, have found) error {
	switch {
	case have.leaving:
		p.waiting = append(p.waiting, have.Element)
	case !have.found && !o.remove:
		p.add = append(p.add, o.el)
	case !have.found:
	case o.remove:
		if !o.el.ofAnother(have.Element) {
			c.withdraw(p, o, have.Element)
		}
	case have.same(o.el) && !have.timed:
	default:
		switch err := o.contest(spec, have.Element); {
		case errors.Is(err, ErrKeep):
		case err != nil:
			return err
		default:
			p.replace(have.Element, o.el)
		}
	}
	return nil
}

func (p *plan) replace(have, by Element) {
	p.delete = append(p.delete, have)
	p.add = append(p.add, by)
}

// withdraw removes an element. If heir returns another element with the same key, withdraw
// replaces the element instead.
func (c *Conn) withdraw(p *plan, o op, have Element) {
	if o.heir != nil {
		if next, ok := o.heir(have); ok && next.SameKey(have) {
			p.replace(have, next)
			return
		}
	}
	c.remove(p, have)
}

// contest returns an error unless the operation may replace another owner's element. In a
// plain set it may, unless a decide function says otherwise, because the element means the
// same for every owner.
func (o op) contest(spec setSpec, have Element) error {
	if !o.el.ofAnother(have) {
		return nil
	}
	conflict := &ConflictError{Want: o.el, Have: have}
	switch {
	case o.decide != nil:
		return o.decide(conflict)
	case spec.exclusive():
		return conflict
	}
	return nil
}

// remove plans the removal of an element, by expiry if possible, else by deletion. Elements of a set of
// flows are always deleted. The same transaction may delete the set: the missing element would then look
// expired, and we would believe that the kernel expires elements.
func (c *Conn) remove(p *plan, e Element) {
	spec, _ := specOf(e.Set)
	if p.expires && !e.timed && spec.level != ofFlows {
		p.expire = append(p.expire, e)
		return
	}
	p.delete = append(p.delete, e)
}

// settled reports whether an operation on a range has nothing to do, so that its set need not be
// listed. An added range must exist already, and the key of a removed range must be missing. If the
// kernel returned another range, settled returns false.
func (o op) settled(have found) bool {
	if o.remove {
		return !have.found
	}
	return have.found && have.SameKey(o.el)
}

func (c *Conn) planExtras(p *plan) error {
	for _, x := range c.extras {
		do, err := x.Plan(c)
		if err != nil {
			return fmt.Errorf("%s: %w", x, err)
		}
		if do != nil {
			p.extras = append(p.extras, do)
			if b, ok := x.(Bulky); ok && b.Bulk() != nil {
				p.bulks = append(p.bulks, b.Bulk())
			}
			tenant, ok := x.(Tenant)
			p.tenants = p.tenants || ok && tenant.Needs()
			light, ok := x.(Light)
			p.heavy = p.heavy || !ok || !light.Light()
		}
	}
	return nil
}
