// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/owner"
)

// State says whether an attachment is alive.
type State string

// These are the states. gc removes only dead attachments. It reports unsure ones and keeps them.
const (
	Alive  State = "alive"
	Dead   State = "dead"
	Unsure State = "unsure"
)

// world holds the facts about the node from which judge decides.
type world struct {
	now   time.Time
	boot  time.Time // when the node booted; zero if that is not known
	grace time.Duration

	listed    func(containerID string) bool // whether the runtime lists the container; nil if no runtime was asked
	seesAll   func() bool                   // whether this process can see all processes of the node
	driver    func(containerID string) bool // whether `patchbayd docker` will detach the container
	namespace func(path string, was *life.Mark) (life.State, string)
	forgotten func(life.Suspect) (why string, ok bool)     // whether containerd has forgotten a sandbox
	carries   func(*Candidate) (link string)               // a veth whose other end is up in another namespace
	inUse     func([]netip.Addr) (where string, err error) // finds an existing namespace that has one of the addresses
	marked    func(owner.Key) (where string, err error)    // finds an existing namespace that has a link with the owner's mark
	firstSeen func(*Candidate) time.Time                   // when gc first saw an attachment whose objects have no date
}

// least is how long gc must have known an object that has no date. It is at least 10 seconds. No
// ADD takes as long between two steps.
func (w *world) least() time.Duration { return max(w.grace, 10*time.Second) }

// judge decides. It looks at certain facts first, and then at likely ones.
func (w *world) judge(a *Candidate) (State, string) {
	state, reason := w.life(a)
	if state == life.Alive && !a.pending() {
		return Alive, reason
	}
	if w.listed != nil && a.ContainerID != "" && w.listed(a.ContainerID) && !a.pending() {
		return Unsure, "the runtime lists its container"
	}
	if w.driver(a.ContainerID) {
		return Unsure, "patchbayd docker has it, and removes it: patchbayd docker gc --apply"
	}
	since, grace := a.Since, w.grace
	if since.IsZero() {
		since, grace = w.firstSeen(a), w.least()
	}
	age := w.now.Sub(since)
	if age < 0 && grace > 0 {
		a.Young = true
		return Unsure, fmt.Sprintf(aheadOfClock, (-age).Round(time.Second))
	}
	if age < grace && grace > 0 {
		a.Young = true
		return Unsure, fmt.Sprintf("it is %v old, less than the grace period of %v", age.Round(time.Second), grace)
	}
	switch {
	case a.pending():
		return Dead, "it was detached, and driver " + a.pendingDriver + " has not been notified"
	case state == life.Dead:
		return Dead, reason
	case w.earlier(a):
		return w.unused(a, "it is from before the node booted")
	case reason != "":
		return Unsure, reason
	case w.listed != nil && a.ContainerID != "":
		return w.unused(a, "the runtime does not list it")
	case a.ContainerID != "" && a.onlyRules():
		return w.judgeElements(a)
	case a.onlyTorn():
		return w.judgeTorn(a)
	case a.ContainerID == "":
		return Unsure, "its record is lost, so its owner is unknown"
	}
	return Unsure, "its namespace is unknown; patchbay gc --from RUNTIME finds out whether the container lives"
}

// aheadOfClock explains why gc keeps an object whose date is in the future.
const aheadOfClock = "it is dated %v ahead of the clock, so it may be younger than the grace period; --grace 0s ignores that"

// earlier reports whether every trace of an attachment is older than the boot of the node. Without
// a record, which a reboot removes, the file of its address decides.
func (w *world) earlier(a *Candidate) bool {
	return len(a.kernel) == 0 && (!a.Since.IsZero() && a.Since.Before(w.boot) || a.outlived && len(a.records) == 0)
}

// life reports whether one of the attachment's namespaces exists. If all of them are gone, the
// state is Dead. If that is not certain for one of them, the state is Unsure. If nothing names a
// namespace, reason is "". If the attachment's veth has a carrier, its other end is up in an
// existing namespace. Then the state is Alive, whatever the paths say. A namespace whose sandbox
// containerd has forgotten counts as gone, and life sets a.forgotten to its path.
func (w *world) life(a *Candidate) (state life.State, reason string) {
	a.forgotten = ""
	for _, path := range a.NetNS {
		for _, mark := range a.marksOf(path) {
			s, why := w.namespace(path, mark)
			if s == life.Alive {
				if gone, ok := w.forgets(a, path); ok {
					s, why, a.forgotten = life.Dead, gone, path
				}
			}
			if s == life.Alive {
				return s, why
			}
			if reason == "" || s == life.Unsure && state == life.Dead {
				state, reason = s, why
			}
		}
	}
	if link := w.carries(a); link != "" && a.forgotten == "" {
		return life.Alive, "its link " + link + " carries: the other end is up in another namespace"
	}
	return state, reason
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

// judgeElements judges an attachment of which only firewall elements are left. If one of them is
// a masquerade, the attachment had a veth. The kernel deletes a veth with its namespace, so the
// namespace is gone. Otherwise this process may only be unable to see the namespace.
func (w *world) judgeElements(a *Candidate) (State, string) {
	const why = "only the firewall has a trace of it"
	if !slices.ContainsFunc(a.elements, nft.Element.OfInterface) && !w.seesAll() {
		return Unsure, why + ", and this process does not see all namespaces"
	}
	return w.unused(a, why)
}

// unused judges an attachment that seems dead but whose namespace is not known. The clock may
// have been set, or another runtime may own the container. So the attachment is dead only if no
// namespace uses its addresses.
func (w *world) unused(a *Candidate, taken string) (State, string) {
	where, err := w.inUse(a.Addrs)
	switch {
	case err != nil:
		return Unsure, fmt.Sprintf("%s, but a namespace cannot be read: %v", taken, err)
	case where != "":
		return Unsure, taken + ", but its address is in use in " + where
	}
	return Dead, taken + " and no namespace has its address"
}

// marks reports whether a plugin's links carry the owner in their alias while the attachment
// exists. The links may be on the host or in the container.
func marks(plugin string) bool {
	return slices.Contains([]string{"bridge", "ptp", "macvlan", "ipvlan", "vlan", "tap", "dummy"}, plugin)
}

// judgeTorn judges an attachment of which only unreadable records are left.
func (w *world) judgeTorn(a *Candidate) (State, string) {
	const why = "only a truncated record names it"
	unmarked := slices.ContainsFunc(a.records, func(k kept) bool { return !marks(k.plugin) })
	switch where, err := w.marked(a.Owner); {
	case err != nil:
		return Unsure, fmt.Sprintf("%s, and a namespace cannot be read: %v", why, err)
	case where != "":
		return Unsure, "its record is truncated, and its link is in " + where + ": attach it again, or delete the link"
	case unmarked:
		files := make([]string, len(a.records))
		for i, k := range a.records {
			files[i] = k.path
		}
		return Unsure, why + ": when its container is gone, delete " + strings.Join(files, ", ")
	case !w.seesAll():
		return Unsure, why + ", and this process does not see all namespaces: run gc where the runtime runs"
	}
	return Dead, why + " and no namespace has a link of it"
}
