// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/internal/inventory"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/spaces"
	"github.com/patchbay-net/patchbay/spec"
)

// State says whether an attachment is alive.
type State string

// These are the states. gc removes only dead attachments. It reports unsure ones and keeps them.
const (
	Alive  State = "alive"
	Dead   State = "dead"
	Unsure State = "unsure"
)

// world holds the facts about the node that inventory.Judge may need.
type world struct {
	now   time.Time
	boot  time.Time // when the node booted; zero if that is not known
	grace time.Duration

	listed    func(containerID string) bool // whether the runtime lists the container; nil if no runtime was asked
	seesAll   func() bool                   // whether this process can see all processes of the node
	driver    func(containerID string) bool // whether `patchbayd docker` will detach the container
	namespace func(path string, was *life.Mark) (life.State, string)
	forgotten func(life.Suspect) (why string, ok bool)                 // whether containerd has forgotten a sandbox
	carries   func(a *Candidate, ending bool) (link string, err error) // kernel.Kernel.LivingPair
	settling  inventory.Settling
	inUse     spaces.Finder
	marked    func(owner.Key) (where string, err error) // finds an existing namespace that has a link with the owner's mark
	firstSeen func(*Candidate) time.Time                // when gc first saw an attachment whose objects have no date
}

// least is how long gc must have known an object that has no date. It is at least 10 seconds. No
// ADD takes as long between two steps.
func (w *world) least() time.Duration { return max(w.grace, 10*time.Second) }

// judge decides about an attachment, and notes what the report says of it.
func (w *world) judge(a *Candidate) (State, string) {
	e := w.evidence(a)
	v := inventory.Judge(e, inventory.Question{Now: w.now, Boot: w.boot, Grace: w.grace, Unseen: w.least()})
	a.forgotten, a.Young, a.Since, a.NetNS = v.Forgotten, v.Young(), e.Since, nil
	for _, s := range e.Spaces {
		if !slices.Contains(a.NetNS, s.Path) {
			a.NetNS = append(a.NetNS, s.Path)
		}
	}
	return State(v.State.String()), v.Why
}

// evidence returns what is known of an attachment.
func (w *world) evidence(a *Candidate) *inventory.Evidence {
	e := a.evidence
	e.Names, e.Pod = spec.AttachmentKey{ContainerID: a.ContainerID, IfName: a.IfName}, a.Pod != ""
	e.Seen, e.ByDriver = func() time.Time { return w.firstSeen(a) }, w.driver(a.ContainerID)
	e.At, e.Forgotten = w.namespace, w.forgotten
	e.Pair, e.Settling = func(ending bool) (string, error) { return w.carries(a, ending) }, &w.settling
	e.ThisBoot, e.InUse = len(a.kernel) > 0, func() (string, error) { return w.inUse(a.Addrs...) }
	e.Remains, e.SeesAll = a.remains(), w.seesAll
	e.Marked, e.Unmarked = func() (string, error) { return w.marked(a.Owner) }, a.unmarked()
	if w.listed != nil && a.ContainerID != "" {
		e.Lists = inventory.No
		if w.listed(a.ContainerID) {
			e.Lists = inventory.Yes
		}
	}
	if a.pending() {
		e.Pending = a.pendingDriver
	}
	return &e
}

// remains says whether what remains of the attachment proves something.
func (a *Candidate) remains() inventory.Remains {
	switch {
	case a.onlyTorn():
		return inventory.Torn
	case a.onlyCached():
		return inventory.Result
	case !a.onlyRules():
		return inventory.More
	case slices.ContainsFunc(a.elements, nft.Element.OfInterface):
		return inventory.Masquerades
	}
	return inventory.Elements
}

// unmarked lists the attachment's records if a plugin made one of them whose links have no mark.
func (a *Candidate) unmarked() string {
	if !slices.ContainsFunc(a.records, func(k kept) bool { return !k.marked }) {
		return ""
	}
	files := make([]string, len(a.records))
	for i, k := range a.records {
		files[i] = k.path
	}
	return strings.Join(files, ", ")
}
