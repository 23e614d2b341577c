// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
)

// op is a queued operation on one element.
type op struct {
	remove bool // remove the element; otherwise add it
	el     Element
	decide func(*ConflictError) error // called if another owner has the key
	heir   Replacement                // called when the element is removed; may be nil
}

// String describes the operation.
func (o op) String() string {
	if o.remove {
		return "remove element " + o.el.String()
	}
	return "add element " + o.el.String()
}

// Replacement returns the element that replaces a removed element with the same key. ok is false
// if no element replaces it. Replacement may be called more than once.
type Replacement func(gone Element) (next Element, ok bool)

// ErrKeep is what the decide function of AddOrDecide returns to keep the other owner's element.
var ErrKeep = errors.New("another owner keeps the element")

// Extra is work on other objects than elements in the same transaction, such as a network's
// conditions or a rule in another program's table.
type Extra interface {
	// String describes the change.
	String() string
	// Plan reads the kernel's state and returns the function that queues the change. Plan returns
	// nil if nothing has to change. Plan is called again if another process changed the kernel's
	// state in between.
	Plan(c *Conn) (func(enc *nftables.Conn) error, error)
}

// Add queues elements. If an equal element exists, Commit leaves it unchanged. If an element with
// the same key differs, Commit replaces it in the same transaction. But in a map of published
// ports, Commit returns a *ConflictError if another owner has the key.
func (c *Conn) Add(elems ...Element) { c.push(elems, op{}) }

// AddOrDecide works like Add, but calls decide if another owner has the key, in plain sets too. decide
// returns nil to replace the element, ErrKeep to keep it, or the error that Commit should return.
func (c *Conn) AddOrDecide(decide func(*ConflictError) error, elems ...Element) {
	c.push(elems, op{decide: decide})
}

// Remove queues the removal of elements. Remove accepts missing elements and keeps elements that
// now belong to another owner. In a set of networks it removes exactly this range. If the range
// contains a range of another network, the caller must add that range again in the same Commit.
func (c *Conn) Remove(elems ...Element) { c.push(elems, op{remove: true}) }

// Withdraw works like Remove, but asks heir for a replacement of each element that it removes.
// Removal and replacement happen in one transaction.
func (c *Conn) Withdraw(heir Replacement, elems ...Element) {
	c.push(elems, op{remove: true, heir: heir})
}

// Tenant is an Extra that changes the table `inet patchbay` itself.
type Tenant interface {
	Extra
	// Needs reports whether the change needs the table. If the table is missing, Commit then makes it.
	Needs() bool
}

// Guarded is an Extra whose plan may only be carried out if no other process has changed the ruleset
// since. If the ruleset has changed, the kernel refuses the transaction, and Plan is called again.
type Guarded interface {
	Extra
	// Guarded does nothing.
	Guarded()
}

// Lasting is an Extra that Commit plans once more after the transaction, and repeats if something is missing
// then. An object that existed at Plan may have been deleted and made again for others, and the kernel does
// not refuse the transaction then. Once the queue's elements exist, no process deletes the object again.
type Lasting interface {
	Extra
	// Lasting does nothing.
	Lasting()
}

// Light is an Extra that needs the lock only for some changes.
type Light interface {
	Extra
	// Light reports, after Plan, whether the plan changes only elements. Two processes may do that at
	// once: the kernel refuses what cannot be done twice, and Plan is called again.
	Light() bool
}

// Merger is an Extra that can be merged with another one. Plan reads what the kernel has and does
// not know what other extras will do. So two extras that create the same chain must become one.
type Merger interface {
	Extra
	// Merge joins two extras. ok is false if they cannot be joined.
	Merge(next Extra) (both Extra, ok bool)
}

// Queue adds an extra to the transaction.
func (c *Conn) Queue(x Extra) {
	for i := range c.extras {
		if m, ok := c.extras[i].(Merger); ok {
			if both, ok := m.Merge(x); ok {
				c.extras[i] = both
				return
			}
		}
	}
	c.extras = append(c.extras, x)
}

// push queues an operation for each element. push replaces an earlier operation on the same
// element.
func (c *Conn) push(elems []Element, o op) {
	if c.index == nil {
		c.index = make(map[string]int)
	}
	for _, e := range elems {
		o.el = e
		id := e.Set + "\x00" + string(e.Key) + "\x00" + string(e.KeyEnd)
		if i, ok := c.index[id]; ok {
			c.queue[i] = o
			continue
		}
		c.index[id] = len(c.queue)
		c.queue = append(c.queue, o)
	}
}

// Pending reports whether Commit has work to do.
func (c *Conn) Pending() bool { return len(c.queue)+len(c.extras) > 0 }

// Discard empties the queue.
func (c *Conn) Discard() { c.queue, c.index, c.extras = nil, nil, nil }

// String lists the queue, one operation per line.
func (c *Conn) String() string {
	var b strings.Builder
	for _, o := range c.queue {
		b.WriteString(o.String() + "\n")
	}
	for _, x := range c.extras {
		b.WriteString(x.String() + "\n")
	}
	return b.String()
}

// ConflictError means that an element belongs to another owner.
type ConflictError struct {
	Want, Have Element
}

// Error names the other owner by the comment of that owner's element.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("add %s: taken by %q", e.Want, e.Have.Comment)
}

// tables returns the families of the tables that the queue changes.
func (c *Conn) tables() []nftables.TableFamily {
	return slices.DeleteFunc(families(), func(f nftables.TableFamily) bool {
		ofQueue := func(o op) bool { return o.el.Family() == f }
		ofExtras := func(x Extra) bool { _, ours := x.(Tenant); return ours && f == nftables.TableFamilyINet }
		return !slices.ContainsFunc(c.queue, ofQueue) && !slices.ContainsFunc(c.extras, ofExtras)
	})
}
