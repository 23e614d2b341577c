// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package inventory decides whether an attachment is dead. Whatever removes attachments asks it: gc, the sweep after a
// call, the verb GC of plugins and of the runtime library, host-local when a range is full. The caller reads the traces, and
// gives them as Evidence. One table (Judge) makes a verdict of it. The package itself reads nothing.
package inventory

import (
	"time"

	"github.com/patchbay-net/patchbay/internal/claim"
	"github.com/patchbay-net/patchbay/internal/life"
)

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
	// Result is a cached result.
	Result
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
	Boot   time.Time     // when the node booted; zero if the caller has no use for it
	Grace  time.Duration // what is younger stays
	Unseen time.Duration // as Grace, since Seen, for an attachment without a date

	HasList bool      // the caller has a list of valid attachments, which lacks this one
	Listed  time.Time // when the list was begun
	OnlyOwn bool      // what another runtime may have made stays, even if it is dead

	Own func(*claim.Head) bool // whether the caller's runtime made the attachment of a record; nil if the caller speaks for every runtime

	// OnlyAddress means that only the address is taken. Then a path proves nothing for an attachment from before the boot,
	// because another namespace may have got the path since: no container is reached through it.
	OnlyAddress bool
}

// OfList is the question of a GC whose list of valid attachments lacks this one. runtime is the name of the process that
// made the list, and everyones says that the list has the attachments of every runtime.
func OfList(listed time.Time, runtime string, everyones bool) Question {
	q := Question{HasList: true, Listed: listed}
	if !everyones {
		q.Own = func(h *claim.Head) bool { return runtime != "" && h.Runtime == runtime }
	}
	return q
}

// Verdict is an answer of the table. Callers remove what is dead, and nothing else.
type Verdict struct {
	State     life.State
	Why       string
	Row       Row
	Maker     Maker
	Forgotten string // the path of its namespace, if that exists and containerd has forgotten the sandbox
}

// Young reports whether the attachment stays only until it is older.
func (v Verdict) Young() bool { return v.Row == Ahead || v.Row == Young }
