// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"
	"slices"
)

// look asks for everything the queue is about in one system call, and decides.
func (c *Conn) look() (plan, error) {
	families := c.tables()
	var what []lookup
	for _, f := range families {
		what = append(what, schemaLookup(f))
	}
	for _, o := range c.queue {
		spec, ok := specOf(o.el.Set)
		if !ok || len(o.el.Key) != concatLen(spec.key) || len(o.el.Data) != concatLen(spec.data) {
			return plan{}, fmt.Errorf("%s element %s: no such set, or not of its type", o.kind, o.el)
		}
		what = append(what, lookup{spec, o.el.Key})
	}
	lengths := c.wanted()
	for _, s := range lengths {
		what = append(what, lookup{set: s})
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
	for i, s := range lengths {
		if !got[len(c.queue)+i].found {
			p.lengths = append(p.lengths, s)
		}
	}
	err = c.decide(&p, got[:len(c.queue)])
	return p, err
}

// wanted are the sets for one length that something is added to, each once.
func (c *Conn) wanted() (specs []setSpec) {
	for _, o := range c.queue {
		spec, _ := specOf(o.el.Set)
		same := func(s setSpec) bool { return s.name == spec.name }
		if spec.length > 0 && o.kind != opRemove && !slices.ContainsFunc(specs, same) {
			specs = append(specs, spec)
		}
	}
	return specs
}

// decide turns wishes and what is there into a plan.
func (c *Conn) decide(p *plan, got []found) error {
	var ranges []op
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

// element decides one wish about an attachment.
func (c *Conn) element(p *plan, spec setSpec, o op, have found) error {
	switch {
	case have.leaving:
		p.waiting = append(p.waiting, have.Element)
	case !have.found && o.kind != opRemove:
		p.add = append(p.add, o.el)
	case !have.found:
	case o.kind == opRemove:
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

// withdraw takes an element away, or gives its place to the heir's.
func (c *Conn) withdraw(p *plan, o op, have Element) {
	if o.heir != nil {
		if next, ok := o.heir(have); ok && next.SameKey(have) {
			p.replace(have, next)
			return
		}
	}
	c.remove(p, have)
}

// contest says whether a wish may have the place of another element. In plain sets
// who does not care takes it: they say the same whoever has it.
func (o op) contest(spec setSpec, have Element) error {
	if !o.el.ofAnother(have) {
		return nil
	}
	taken := &TakenError{Want: o.el, Have: have}
	switch {
	case o.decide != nil:
		return o.decide(taken)
	case spec.exclusive():
		return taken
	}
	return nil
}

// remove chooses how an element goes.
func (c *Conn) remove(p *plan, e Element) {
	if c.mayExpire() && !e.timed {
		p.expire = append(p.expire, e)
		return
	}
	p.delete = append(p.delete, e)
}

// settled says that a range needs no closer look: added and there, or removed
// and nothing of it there. An answer of another range leaves it open.
func (o op) settled(have found) bool {
	if o.kind == opRemove {
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
			cond, ok := x.(conditionsExtra)
			p.conditions = p.conditions || ok && !cond.drop
		}
	}
	return nil
}
