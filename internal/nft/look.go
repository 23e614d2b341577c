// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import "fmt"

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
		p.tables = append(p.tables, s)
	}
	err = c.decide(&p, got[len(families):])
	return p, err
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
			c.remove(p, have.Element)
		}
	case have.same(o.el):
	default:
		if err := o.contest(spec, have.Element); err != nil {
			return err
		}
		p.delete = append(p.delete, have.Element)
		p.add = append(p.add, o.el)
	}
	return nil
}

// contest says whether a wish may have the place of another element.
func (o op) contest(spec setSpec, have Element) error {
	if o.kind != opAdd || !spec.exclusive() || !o.el.ofAnother(have) {
		return nil
	}
	taken := &TakenError{Want: o.el, Have: have}
	if o.decide == nil {
		return taken
	}
	return o.decide(taken)
}

// remove chooses how an element goes.
func (c *Conn) remove(p *plan, e Element) {
	if c.mayExpire() {
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
	return have.found && have.sameKey(o.el)
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
