// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"slices"
	"time"

	"github.com/patchbay-net/patchbay/internal/claim"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/spec"
)

// Evidence is what a caller has read of one attachment. What follows from it is decided here, once for all callers: in
// which namespaces the attachment may be, who made it, how old it is, whether it is from before the boot, and whether
// containerd has forgotten it. A function is evidence that takes time, so the table calls it only when a row needs it. A
// field that is zero says nothing.
type Evidence struct {
	Since time.Time          // date of its youngest trace (Date); zero if no trace has one
	Seen  func() time.Time   // when the caller saw it first; counts if Since is zero
	Names spec.AttachmentKey // empty if they are not known
	Pod   bool               // it is a Kubernetes pod's

	Cached   bool   // the caller itself has cached its result, so the caller's list would have it
	Lists    Answer // whether a runtime's list of containers has its container
	ByDriver bool   // `patchbayd docker` has the attachment, and will detach it
	Pending  string // the driver that must hear of its end, if that is all that is left to do

	Spaces    []Space                                                // add with Space
	At        func(path string, was *life.Mark) (life.State, string) // life.Judge.At
	Forgotten func(life.Suspect) (why string, ok bool)               // life.Judge.Forgotten
	Settling  *Settling                                              // for pairs that the kernel is about to delete

	// Pair finds the attachment's link on the host whose other end is up in an existing namespace; if ending, also in one that
	// has ended, until the kernel deletes the pair.
	Pair func(ending bool) (link string, err error)

	Outlived bool                             // its addresses were reserved before the node booted
	ThisBoot bool                             // something of it is from this boot: in the kernel, or below /run
	InUse    func() (where string, err error) // finds an existing namespace that has one of its addresses
	Here     func() (where string, err error) // as InUse, but only of containers on links of this host

	Remains  Remains
	SeesAll  func() bool                      // whether this process sees all processes of the node
	Marked   func() (where string, err error) // finds an existing namespace that has a link with its mark
	Unmarked string                           // Torn only: the records of plugins whose links have no mark

	records []*claim.Head // nil for one that cannot be read
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

// Space adds a namespace that a trace names. A mark says which namespace was at the path, so beside it a trace of the same
// path without a mark says nothing. An empty path says nothing either.
func (e *Evidence) Space(path string, mark *life.Mark) {
	same := func(s Space) bool { return s.Path == path && (mark == nil || mark.Same(s.Mark)) }
	if path == "" || slices.ContainsFunc(e.Spaces, same) {
		return
	}
	unmarked := func(s Space) bool { return s.Path == path && s.Mark == nil }
	e.Spaces = append(slices.DeleteFunc(e.Spaces, unmarked), Space{path, mark})
}

// Record adds a record that was written at since. h is nil if the record cannot be read.
func (e *Evidence) Record(h *claim.Head, since time.Time) {
	e.Date(since)
	e.records = append(e.records, h)
	if h == nil {
		return
	}
	e.Names = spec.AttachmentKey{ContainerID: h.ContainerID, IfName: h.IfName}
	e.Pod = e.Pod || h.Pod != ""
	e.Space(h.NetNS, h.NetNSMark)
}

func (e *Evidence) named() bool { return e.Names.ContainerID != "" }

// maker says who made the attachment. If none of its records can be read, but its names are known, the list would have had
// it.
func (e *Evidence) maker(q Question) Maker {
	switch {
	case !e.named(), len(e.records) == 0 && !e.Cached:
		return Nobody
	case q.Own != nil && slices.ContainsFunc(e.records, func(h *claim.Head) bool { return h != nil && !q.Own(h) }):
		return Another
	}
	return Asker
}

// earlier reports whether every trace is from before the node booted, as far as files show that. A reboot removes records,
// so a record is from this boot, whatever is known of the addresses.
func (e *Evidence) earlier(q Question) bool {
	return !e.ThisBoot && (!e.Since.IsZero() && e.Since.Before(q.Boot) || e.Outlived && len(e.records) == 0)
}

// forgotten reports whether containerd has forgotten the pod whose namespace is at path. Each record must have the caller
// of its ADD. Without records, nothing but a cached result may be left.
func (e *Evidence) forgotten(path string) (why string, ok bool) {
	s := life.Suspect{ID: e.Names.ContainerID, NetNS: path, IfName: e.Names.IfName}
	switch {
	case e.Forgotten == nil || !e.Pod || !e.named():
		return "", false
	case len(e.records) == 0 && e.Remains == Result:
		return e.Forgotten(s)
	}
	for _, h := range e.records {
		if h == nil || h.Caller == nil {
			return "", false
		}
		s.Caller = h.Caller
		if why, ok = e.Forgotten(s); !ok {
			return "", false
		}
	}
	return why, ok
}

// nowhere reports whether a record names no namespace: its plugin found none at the path that its ADD got.
func (e *Evidence) nowhere() bool {
	return slices.ContainsFunc(e.records, func(h *claim.Head) bool { return h != nil && h.NetNS == "" })
}

// Namespace reports whether one of the namespaces exists that traces name. If all of them are gone, the state is Dead.
// If that is not certain for one of them, it is Unsure. If no trace names a namespace, why is "". A namespace whose
// sandbox containerd has forgotten counts as gone. That nothing is at a path proves nothing if nothing was there before.
func (e *Evidence) Namespace() Verdict {
	var v Verdict
	nowhere := e.nowhere()
	for _, s := range e.Spaces {
		state, why := e.At(s.Path, s.Mark)
		if state == life.Dead && s.Mark == nil && nowhere {
			continue
		}
		if state == life.Alive {
			if gone, ok := e.forgotten(s.Path); ok {
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
