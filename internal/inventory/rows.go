// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"time"

	"github.com/patchbay-net/patchbay/internal/life"
)

// Row names a row of the table.
type Row string

// These are the rows, in their order.
const (
	Newer      Row = "newer than the list"
	NotOwn     Row = "perhaps another runtime's"
	Unlisted   Row = "not on its runtime's list"
	Exists     Row = "its namespace exists"
	PairInUse  Row = "its pair carries"
	HasAddress Row = "a container has its address"
	Listed     Row = "the runtime lists its container"
	OfDriver   Row = "of the Docker driver"
	Ahead      Row = "ahead of the clock"
	Young      Row = "young"
	Ended      Row = "a driver must hear of its end"
	Gone       Row = "its namespace is gone"
	Earlier    Row = "from before the boot"
	Doubtful   Row = "its namespace may exist"
	NotListed  Row = "the runtime does not list its container"
	OnlyRules  Row = "only elements"
	OnlyTorn   Row = "only torn records"
	Unrecorded Row = "without a record, and not on a list"
	Nameless   Row = "without a name"
	Untraced   Row = "without a namespace"
)

// Judge is the table: the first row that applies decides.
//
// Before it looks at the node, it asks the list of a GC. The list of the runtime that made an attachment is proof
// enough, also while the namespace exists: the runtime has ended the container. After that come the rows that prove life,
// then those that wait, then those that prove death. Those that look at all namespaces come last.
func Judge(e *Evidence, q Question) Verdict {
	v := e.judge(q)
	v.Maker = e.maker(q)
	return v
}

func (e *Evidence) judge(q Question) Verdict {
	switch maker := e.maker(q); {
	case q.HasList && e.Since.After(q.Listed):
		return unsure(Newer, "it is newer than the list of valid attachments")
	case q.OnlyOwn && maker != Asker:
		return unsure(NotOwn, "it may be another runtime's")
	case q.HasList && maker == Asker:
		return dead(Unlisted, "the list of valid attachments lacks it")
	}
	space := e.lives(q)
	if space.State != life.Dead && q.OnlyAddress && e.earlier(q) {
		space = Verdict{}
	}
	if space.State == life.Alive && e.Pending == "" {
		return space
	}
	if v, ok := e.patience(q); ok {
		return v
	}
	v := e.dead(q, space)
	v.Forgotten = space.Forgotten
	return v
}

// patience has the rows that keep an attachment for now, although its namespace may be gone.
func (e *Evidence) patience(q Question) (v Verdict, applies bool) {
	switch {
	case e.Lists == Yes && e.Pending == "":
		return unsure(Listed, "the runtime lists its container"), true
	case e.ByDriver:
		return unsure(OfDriver, "patchbayd docker has it, and removes it: patchbayd docker gc --apply"), true
	}
	since, grace := e.Since, q.Grace
	if since.IsZero() && e.Seen != nil {
		since, grace = e.Seen(), q.Unseen
	}
	switch age := q.Now.Sub(since); {
	case grace <= 0 || since.IsZero():
		return Verdict{}, false
	case age < 0:
		return unsure(Ahead, fmt.Sprintf(AheadOfClock, (-age).Round(time.Second))), true
	case age < grace:
		return unsure(Young, fmt.Sprintf("it is %v old, less than the grace period of %v", age.Round(time.Second), grace)), true
	}
	return Verdict{}, false
}

// AheadOfClock explains why something stays whose date is in the future.
const AheadOfClock = "it is dated %v ahead of the clock, so it may be younger than the grace period; --grace 0s ignores that"

// dead has the rows that remove. Where one of them lacks a proof, the attachment stays.
func (e *Evidence) dead(q Question, space Verdict) Verdict {
	switch {
	case e.Pending != "":
		return dead(Ended, "it was detached, and driver "+e.Pending+" has not been notified")
	case space.State == life.Dead:
		return dead(Gone, space.Why)
	case e.earlier(q):
		return e.unused(Earlier, "it is from before the node booted")
	case space.Why != "" && e.maker(q) == Another:
		return unsure(Doubtful, "another runtime made it, and its namespace may exist")
	case space.Why != "":
		return unsure(Doubtful, space.Why)
	case e.Lists == No && e.named():
		return e.unused(NotListed, "the runtime does not list it")
	case e.named() && (e.Remains == Elements || e.Remains == Masquerades):
		return e.elements()
	case e.Remains == Torn:
		return e.torn()
	case q.HasList && e.maker(q) == Nobody:
		return e.unrecorded(q)
	case !e.named():
		return unsure(Nameless, "its record is lost, so its owner is unknown")
	}
	return unsure(Untraced, "its namespace is unknown; patchbay gc --from RUNTIME finds out whether the container lives")
}

// unused judges an attachment that seems dead but whose namespace is not known. The clock may have been set, or another
// runtime may own the container. So it is dead only if no namespace uses its addresses.
func (e *Evidence) unused(row Row, why string) Verdict {
	switch where, err := e.InUse(); {
	case err != nil:
		return unsure(row, fmt.Sprintf("%s, but a namespace cannot be read: %v", why, err))
	case where != "":
		return unsure(HasAddress, why+", but its address is in use in "+where)
	}
	return dead(row, why+" and no namespace has its address")
}

// unrecorded judges an attachment that a GC's list lacks, and of which no record says who made it. The reference
// attached it, or its records are lost. The list may be another runtime's, so a container with its address is its own.
func (e *Evidence) unrecorded(q Question) Verdict {
	if e.Here != nil && q.Own != nil {
		switch where, err := e.Here(); {
		case err != nil:
			return unsure(Unrecorded, err.Error())
		case where != "":
			return unsure(HasAddress, "no record says who made it, and its address is in use in "+where)
		}
	}
	return dead(Unrecorded, "the list of valid attachments lacks it, and nothing of it is in use")
}

// elements judges an attachment of which only firewall elements are left. If one of them is a masquerade, the attachment
// had a veth. The kernel deletes a veth with its namespace, so the namespace is gone. Otherwise this process may only be
// unable to see the namespace.
func (e *Evidence) elements() Verdict {
	const why = "only the firewall has a trace of it"
	if e.Remains == Elements && !e.SeesAll() {
		return unsure(OnlyRules, why+", and this process does not see all namespaces")
	}
	return e.unused(OnlyRules, why)
}

// torn judges an attachment of which only unreadable records are left.
func (e *Evidence) torn() Verdict {
	const why = "only a truncated record names it"
	switch where, err := e.Marked(); {
	case err != nil:
		return unsure(OnlyTorn, fmt.Sprintf("%s, and a namespace cannot be read: %v", why, err))
	case where != "":
		return unsure(OnlyTorn, "its record is truncated, and its link is in "+where+": attach it again, or delete the link")
	case e.Unmarked != "":
		return unsure(OnlyTorn, why+": when its container is gone, delete "+e.Unmarked)
	case !e.SeesAll():
		return unsure(OnlyTorn, why+", and this process does not see all namespaces: run gc where the runtime runs")
	}
	return dead(OnlyTorn, why+" and no namespace has a link of it")
}

func unsure(row Row, why string) Verdict { return Verdict{State: life.Unsure, Row: row, Why: why} }

func dead(row Row, why string) Verdict { return Verdict{State: life.Dead, Row: row, Why: why} }
