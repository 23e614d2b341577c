// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/internal/inventory"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
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
	forgotten func(life.Suspect) (why string, ok bool)     // whether containerd has forgotten a sandbox
	carries   func(*Candidate) (link string, err error)    // a veth whose other end is up in another namespace
	inUse     func([]netip.Addr) (where string, err error) // finds an existing namespace that has one of the addresses
	marked    func(owner.Key) (where string, err error)    // finds an existing namespace that has a link with the owner's mark
	firstSeen func(*Candidate) time.Time                   // when gc first saw an attachment whose objects have no date
}

// least is how long gc must have known an object that has no date. It is at least 10 seconds. No
// ADD takes as long between two steps.
func (w *world) least() time.Duration { return max(w.grace, 10*time.Second) }

// judge decides about an attachment, and notes why, and the path of a namespace that containerd has forgotten.
func (w *world) judge(a *Candidate) (State, string) {
	v := inventory.Judge(w.evidence(a), inventory.Question{Now: w.now, Grace: w.grace, Unseen: w.least()})
	a.forgotten, a.Young = v.Forgotten, v.Young()
	return State(v.State.String()), v.Why
}

// evidence returns what is known of an attachment.
func (w *world) evidence(a *Candidate) *inventory.Evidence {
	e := &inventory.Evidence{
		Since: a.Since, Seen: func() time.Time { return w.firstSeen(a) }, Named: a.ContainerID != "", ByDriver: w.driver(a.ContainerID),
		At: w.namespace, Forgotten: func(path string) (string, bool) { return w.forgets(a, path) },
		Pair: func() (string, error) { return w.carries(a) }, Earlier: w.earlier(a),
		InUse: func() (string, error) { return w.inUse(a.Addrs) }, SeesAll: w.seesAll,
		Remains: a.remains(), Marked: func() (string, error) { return w.marked(a.Owner) }, Unmarked: a.unmarked(),
	}
	if w.listed != nil && a.ContainerID != "" {
		e.Lists = inventory.No
		if w.listed(a.ContainerID) {
			e.Lists = inventory.Yes
		}
	}
	if a.pending() {
		e.Pending = a.pendingDriver
	}
	for _, path := range a.NetNS {
		for _, mark := range a.marksOf(path) {
			e.Spaces = append(e.Spaces, inventory.Space{Path: path, Mark: mark})
		}
	}
	return e
}

// earlier reports whether every trace of an attachment is older than the boot of the node. Without
// a record, which a reboot removes, the file of its address decides.
func (w *world) earlier(a *Candidate) bool {
	return len(a.kernel) == 0 && (!a.Since.IsZero() && a.Since.Before(w.boot) || a.outlived && len(a.records) == 0)
}

// forgets reports whether containerd has forgotten the sandbox of a pod. If there are records, each
// must have the caller of its ADD. Without records, nothing but a cached result may be left.
func (w *world) forgets(a *Candidate, path string) (why string, ok bool) {
	s := life.Suspect{ID: a.ContainerID, NetNS: path, IfName: a.IfName}
	if a.Pod == "" || a.ContainerID == "" || len(a.callers) != len(a.records) {
		return "", false
	}
	if len(a.records) == 0 {
		bare := a.cached != nil && len(a.pools)+len(a.links)+len(a.elements)+len(a.files) == 0
		if !bare {
			return "", false
		}
		return w.forgotten(s)
	}
	for _, s.Caller = range a.callers {
		if why, ok = w.forgotten(s); !ok {
			return "", false
		}
	}
	return why, true
}

// remains says whether what remains of the attachment proves something.
func (a *Candidate) remains() inventory.Remains {
	switch {
	case a.onlyTorn():
		return inventory.Torn
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
