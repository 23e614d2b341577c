// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"
	"strings"

	"github.com/google/nftables"
)

type kind int

const (
	opAdd kind = iota
	opRemove
)

func (k kind) String() string { return [...]string{"add", "remove"}[k] }

// op is one queued wish about one element.
type op struct {
	kind   kind
	el     Element
	decide func(*TakenError) error // who is asked when another owner has the key
	heir   Heir                    // who is asked when the element goes; may be nil
}

// Heir says which element, of the same key, comes in the place of one that goes;
// ok is false when none does. It may be asked more than once.
type Heir func(gone Element) (next Element, ok bool)

// ErrKeep is what decide of Claim returns to leave the other owner's element where
// it is.
var ErrKeep = errors.New("another owner keeps the element")

// Extra is work beside elements that joins the transaction: a network's
// conditions, a rule in somebody else's table.
type Extra interface {
	// String says what it does, for people.
	String() string
	// Plan looks at the kernel and returns what queues the change; nil when
	// there is nothing to change. It may be asked again when somebody else
	// changed the kernel in between.
	Plan(c *Conn) (func(enc *nftables.Conn) error, error)
}

// Add queues elements. One that is there already is left alone when it is the
// same, and replaced in the same transaction when it differs, except that
// Commit returns a *TakenError when another owner has the key in a map of
// published ports.
func (c *Conn) Add(elems ...Element) { c.push(elems, op{kind: opAdd}) }

// Claim is Add with somebody to ask when another owner has the key, in plain sets
// too: decide returns nil to take it over, ErrKeep, or the error Commit returns.
func (c *Conn) Claim(decide func(*TakenError) error, elems ...Element) {
	c.push(elems, op{kind: opAdd, decide: decide})
}

// Remove queues the removal of elements. What is missing, or belongs to
// another owner by now, is left alone. In network-level sets it removes
// exactly this range; a network of the same facts that lies within the range
// must be added again in the same Commit.
func (c *Conn) Remove(elems ...Element) { c.push(elems, op{kind: opRemove}) }

// Withdraw is Remove that asks heir for what comes in the place of each element
// that is there and does go; both are of one transaction.
func (c *Conn) Withdraw(heir Heir, elems ...Element) { c.push(elems, op{kind: opRemove, heir: heir}) }

// Merger is an Extra that can take in another one. Each of two is planned by
// what the kernel has, not by what the other will do, so two that make the
// same chain must become one.
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

// push keeps one wish for each element, the last.
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

// Pending says whether Commit has anything to do.
func (c *Conn) Pending() bool { return len(c.queue)+len(c.extras) > 0 }

// Discard forgets what is queued.
func (c *Conn) Discard() { c.queue, c.index, c.extras = nil, nil, nil }

// String lists the queue, one line each.
func (c *Conn) String() string {
	var b strings.Builder
	for _, o := range c.queue {
		fmt.Fprintf(&b, "%s element %s\n", o.kind, o.el)
	}
	for _, x := range c.extras {
		b.WriteString(x.String() + "\n")
	}
	return b.String()
}

// TakenError says that an element belongs to another owner.
type TakenError struct {
	Want, Have Element
}

// Error names the other owner by the comment of its element.
func (e *TakenError) Error() string {
	return fmt.Sprintf("add %s: taken by %q", e.Want, e.Have.Comment)
}

// tables are the families whose tables the queue is about.
func (c *Conn) tables() []nftables.TableFamily {
	var has [2]bool
	families := [...]nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyBridge}
	for _, o := range c.queue {
		spec, _ := specOf(o.el.Set)
		has[0] = has[0] || spec.family == families[0]
		has[1] = has[1] || spec.family == families[1]
	}
	for _, x := range c.extras {
		_, ours := x.(conditionsExtra)
		has[0] = has[0] || ours
	}
	var f []nftables.TableFamily
	for i, family := range families {
		if has[i] {
			f = append(f, family)
		}
	}
	return f
}
