// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package inventory decides whether an attachment is dead. Whatever removes attachments asks it: gc, the sweep after a
// call, the verb GC of plugins and of the runtime library, host-local when a range is full. It is pure: the caller
// looks, and gives what it saw as Evidence. One table (Judge) makes a verdict of it.
package inventory

import (
	"time"

	"github.com/patchbay-net/patchbay/internal/life"
)

// Evidence is what a caller knows of one attachment. A function is evidence that takes time, so the table calls it only
// when a row needs it. A field that is zero says nothing.
type Evidence struct {
	Since time.Time        // date of its youngest trace; zero if no trace has one
	Seen  func() time.Time // when the caller saw it first; counts if Since is zero
	Named bool             // its names are known

	Maker    Maker
	Lists    Answer // whether a runtime's list of containers has its container
	ByDriver bool   // `patchbayd docker` has the attachment, and will detach it
	Pending  string // the driver that must hear of its end, if that is all that is left to do

	Spaces    []Space
	At        func(path string, was *life.Mark) (life.State, string) // life.Judge.At
	Forgotten func(path string) (why string, ok bool)                // whether containerd has forgotten the sandbox at path
	Pair      func() (link string, err error)                        // its link on the host whose other end is up in an existing namespace

	Earlier bool                             // every trace is from before the node booted, as far as files show that
	InUse   func() (where string, err error) // finds an existing namespace that has one of its addresses
	Here    func() (where string, err error) // as InUse, but only of containers on links of this host

	Remains  Remains
	SeesAll  func() bool                      // whether this process sees all processes of the node
	Marked   func() (where string, err error) // finds an existing namespace that has a link with its mark
	Unmarked string                           // Torn only: the records of plugins whose links have no mark
}

// Space is a namespace that a trace names.
type Space struct {
	Path string
	Mark *life.Mark // nil if the trace has none
}

// Date adds the date of a trace.
func (e *Evidence) Date(t time.Time) {
	if t.After(e.Since) {
		e.Since = t
	}
}

// Maker says who made an attachment, as the caller of a GC or sweep sees it.
type Maker int

const (
	// Nobody means that no record says who made it.
	Nobody Maker = iota
	// Asker means that the caller made it, or speaks for every runtime: its list would have the attachment.
	Asker
	// Another means that another runtime may have made it.
	Another
)

// Answer is the answer to a question that the caller may not have asked.
type Answer int

// These are the answers.
const (
	NotAsked Answer = iota
	Yes
	No
)

// Remains says what remains of an attachment, if it is so little that it proves something.
type Remains int

const (
	// More means more than the others.
	More Remains = iota
	// Elements are elements of the firewall, without record, result, address, link or file.
	Elements
	// Masquerades are elements too, and one of them is of an attachment that had a veth.
	Masquerades
	// Torn are records of our plugins that cannot be read, so that its container is not known.
	Torn
)

// Question says who asks.
type Question struct {
	Now    time.Time
	Grace  time.Duration // what is younger stays
	Unseen time.Duration // as Grace, since Seen, for an attachment without a date

	HasList bool      // the caller has a list of valid attachments, which lacks this one
	Listed  time.Time // when the list was begun
	OnlyOwn bool      // what another runtime may have made stays, even if it is dead
}

// Verdict is an answer of the table. Callers remove what is dead, and nothing else.
type Verdict struct {
	State     life.State
	Why       string
	Row       Row
	Forgotten string // the path of its namespace, if that exists and containerd has forgotten the sandbox
}

// Young reports whether the attachment stays only until it is older.
func (v Verdict) Young() bool { return v.Row == Ahead || v.Row == Young }

// Namespace reports whether one of the namespaces exists that traces name. If all of them are gone, the state is Dead.
// If that is not certain for one of them, it is Unsure. If no trace names a namespace, why is "". A namespace whose
// sandbox containerd has forgotten counts as gone.
func (e *Evidence) Namespace() Verdict {
	var v Verdict
	for _, s := range e.Spaces {
		state, why := e.At(s.Path, s.Mark)
		if state == life.Alive && e.Forgotten != nil {
			if gone, ok := e.Forgotten(s.Path); ok {
				state, why, v.Forgotten = life.Dead, gone, s.Path
			}
		}
		if state == life.Alive {
			return Verdict{State: state, Why: why, Row: Exists}
		}
		if v.Why == "" || state == life.Unsure && v.State == life.Dead {
			v.State, v.Why = state, why
		}
	}
	return v
}

// lives adds to Namespace what the attachment's veth shows. If it carries, its other end is up in an existing
// namespace, so that the attachment lives whatever is at the paths.
func (e *Evidence) lives() Verdict {
	v := e.Namespace()
	if v.State == life.Alive || v.Forgotten != "" || e.Pair == nil {
		return v
	}
	switch link, err := e.Pair(); {
	case err != nil:
		return Verdict{State: life.Alive, Why: "its link cannot be read, so its container may live: " + err.Error(), Row: PairInUse}
	case link != "":
		return Verdict{State: life.Alive, Why: "its link " + link + " carries, so its container lives", Row: PairInUse}
	}
	return v
}
