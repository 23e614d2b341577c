// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"fmt"
	"net/netip"
	"time"
)

// State is what is known of an attachment.
type State string

// The states. Only what is dead is removed; what is unsure is shown.
const (
	Alive  State = "alive"
	Dead   State = "dead"
	Unsure State = "unsure"
)

// world is what an attachment is judged by.
type world struct {
	now   time.Time
	boot  time.Time // when the node booted; zero when that cannot be known
	grace time.Duration

	listed    func(containerID string) bool                // by the runtime; nil when no list was given
	driver    func(containerID string) bool                // whether `patchbayd docker` knows it
	namespace func(path string) bool                       // exists, and is a container's
	inUse     func([]netip.Addr) (where string, err error) // an address in a namespace that exists
	firstSeen func(*Attachment) time.Time                  // by gc, for what has no age of its own
}

// least is how long gc must have known what has no age of its own: without a
// grace period still longer than the steps of one ADD are apart.
func (w *world) least() time.Duration { return max(w.grace, 10*time.Second) }

// judge decides, from what is certain to what is likely.
func (w *world) judge(a *Attachment) (State, string) {
	for _, path := range a.NetNS {
		if a.untold == "" && w.namespace(path) {
			return Alive, "its namespace " + path + " exists"
		}
	}
	if w.listed != nil && a.ContainerID != "" && w.listed(a.ContainerID) && a.untold == "" {
		return Unsure, "the runtime lists its container"
	}
	if w.driver(a.ContainerID) {
		return Unsure, "patchbayd docker has it, and removes it: patchbayd docker gc"
	}
	since, grace := a.Since, w.grace
	if since.IsZero() {
		since, grace = w.firstSeen(a), w.least()
	}
	if age := w.now.Sub(since); age < grace {
		a.Young = true
		return Unsure, fmt.Sprintf("it is %v old, less than the grace period of %v", age.Round(time.Second), grace)
	}
	switch {
	case a.untold != "":
		return Dead, "it was detached, and driver " + a.untold + " has not heard of it"
	case len(a.NetNS) > 0:
		return Dead, "its namespace " + a.NetNS[0] + " is gone"
	case !a.Since.IsZero() && len(a.kernel) == 0 && a.Since.Before(w.boot):
		return Dead, "it is from before the node booted"
	case w.listed != nil && a.ContainerID != "":
		return w.unlisted(a)
	case a.ContainerID == "":
		return Unsure, "its record is lost and nothing tells whose it is"
	}
	return Unsure, "nothing tells its namespace; --from RUNTIME tells whether the container lives"
}

// unlisted judges what no namespace is known of and the runtime does not know
// either. It may be another runtime's, so its addresses must not be in use.
func (w *world) unlisted(a *Attachment) (State, string) {
	where, err := w.inUse(a.Addrs)
	switch {
	case err != nil:
		return Unsure, fmt.Sprintf("the runtime does not list it, but a namespace cannot be looked into: %v", err)
	case where != "":
		return Unsure, "the runtime does not list it, but its address is in use in " + where
	}
	return Dead, "the runtime does not list it and no namespace has its address"
}
