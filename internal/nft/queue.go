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

// op is one queued operation on one element.
type op struct {
	remove bool // else add
	el     Element
	decide func(*TakenError) error // called when another owner has the key
	heir   Replacement             // called when the element is removed; may be nil
}

// String is the operation in words.
func (o op) String() string {
	if o.remove {
		return "remove element " + o.el.String()
	}
	return "add element " + o.el.String()
}

// Replacement returns the element, of the same key, that replaces a removed one; ok is false when
// none does. It may be called more than once.
type Replacement func(gone Element) (next Element, ok bool)

// ErrKeep is what decide of Claim returns to keep the other owner's element.
var ErrKeep = errors.New("another owner keeps the element")

// Extra is work beside elements that joins the transaction: a network's conditions, a rule
// in another program's table.
type Extra interface {
	// String describes the change for people.
	String() string
	// Plan reads the kernel's state and returns the function that queues the change, nil
	// when nothing has to change. It may be called again when another process changed the
	// kernel in between.
	Plan(c *Conn) (func(enc *nftables.Conn) error, error)
}

// Add queues elements. It leaves an element alone that exists and is the same, and replaces
// one that differs in the same transaction. But Commit returns a *TakenError when another
// owner has the key in a map of published ports.
func (c *Conn) Add(elems ...Element) { c.push(elems, op{}) }

// Claim is Add with a decision about keys of other owners, in plain sets too: decide
// returns nil to replace the element, ErrKeep to keep it, or the error for Commit to
// return.
func (c *Conn) Claim(decide func(*TakenError) error, elems ...Element) {
	c.push(elems, op{decide: decide})
}

// Remove queues the removal of elements. It leaves elements alone that belong to another
// owner by now; a missing one is no error. In network-level sets it removes exactly this
// range. A network of the same kind that lies within the range must be added again in the
// same Commit.
func (c *Conn) Remove(elems ...Element) { c.push(elems, op{remove: true}) }

// Withdraw is Remove that calls heir for the replacement of each element that exists and is
// removed; removal and replacement are one transaction.
func (c *Conn) Withdraw(heir Replacement, elems ...Element) {
	c.push(elems, op{remove: true, heir: heir})
}

// Merger is an Extra that can merge with another one. Plan reads what the kernel has, not
// what other extras will do, so two extras that create the same chain must become one.
type Merger interface {
	Extra
	// Merge returns both in one; ok is false when they have nothing in common.
	Merge(next Extra) (both Extra, ok bool)
}

// Queue adds work beside elements to the transaction.
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

// push keeps the last operation on each element.
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

// Pending reports whether Commit has anything to do.
func (c *Conn) Pending() bool { return len(c.queue)+len(c.extras) > 0 }

// Discard empties the queue.
func (c *Conn) Discard() { c.queue, c.index, c.extras = nil, nil, nil }

// String lists the queue, one line each.
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

// TakenError reports that an element belongs to another owner.
type TakenError struct {
	Want, Have Element
}

// Error names the other owner by the comment of its element.
func (e *TakenError) Error() string {
	return fmt.Sprintf("add %s: taken by %q", e.Want, e.Have.Comment)
}

// tables returns the families whose tables the queue changes.
func (c *Conn) tables() []nftables.TableFamily {
	return slices.DeleteFunc(families(), func(f nftables.TableFamily) bool {
		ofQueue := func(o op) bool { return o.el.Family() == f }
		ofExtras := func(x Extra) bool { _, ours := x.(conditionsExtra); return ours && f == nftables.TableFamilyINet }
		return !slices.ContainsFunc(c.queue, ofQueue) && !slices.ContainsFunc(c.extras, ofExtras)
	})
}
