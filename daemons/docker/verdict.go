// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"fmt"
	"time"

	"github.com/patchbay-net/patchbay/daemons/docker/state"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/netns"
)

// verdict says whether an object of the driver is alive. The collector keeps an object that is
// alive, and removes one that is dead. It keeps and reports an unsure object. The zero verdict
// is unsure.
type verdict struct {
	state life.State
	why   string
}

func alive(why string) verdict { return verdict{life.Alive, why} }
func dead(why string) verdict  { return verdict{life.Dead, why} }

func unsure(format string, args ...any) verdict {
	return verdict{life.Unsure, fmt.Sprintf(format, args...)}
}

// listing says whether Docker has an object.
type listing int

const (
	notAsked listing = iota // Docker was not asked, or the object is so young that Docker may not know it yet
	has
	hasNot
)

// evidence holds everything on which a verdict depends. If Docker was not asked, no object counts
// as dead for that reason.
type evidence struct {
	now    time.Time
	boot   string
	grace  time.Duration // unused objects are kept this long
	wanted bool          // another endpoint wants the address or port of this one

	docker listing
	// use says whether something living uses the object. An endpoint is used if its interface is in
	// its sandbox. A network is used if a container runs on it. A lease is used if an endpoint has
	// it.
	use verdict

	sandbox netns.ID // the namespace at the sandbox's path
	exists  bool     // there is a namespace at the path
	missing bool     // there is no file at the path
	unseen  error    // why the sandbox could not be examined
}

// endpoint judges an endpoint. The caller holds the endpoint's lock. So if a phase ends in -ing,
// its call was killed.
func (f *evidence) endpoint(e *state.Endpoint) verdict {
	switch {
	case f.unseen != nil:
		return unsure("whether its sandbox is gone is unknown: %v", f.unseen)
	case e.Boot != f.boot:
		return dead("it is from before the node booted")
	case e.Phase == state.Creating:
		return dead("its creation was interrupted, and Docker knows")
	case e.Phase == state.Deleting:
		return dead("it was not removed completely")
	case e.Phase != state.Joined:
		return f.between(e)
	case awaitsSandbox(e):
		return f.awaiting(e)
	case !f.here(e):
		return dead("its sandbox is gone")
	case f.docker == hasNot:
		return f.unlessUsed("Docker no longer has it")
	}
	return alive("its sandbox exists")
}

// between judges an endpoint that waits for Docker's next call.
func (f *evidence) between(e *state.Endpoint) verdict {
	if f.old(e) || f.late(e) {
		return dead(fmt.Sprintf("it is %s since %v", e.Phase, e.Changed.Format(time.RFC3339)))
	}
	return alive("it waits for Docker's next call")
}

// awaiting judges an endpoint that waits for its sandbox. The sandbox's path may be a file
// without a namespace, for one of two reasons: dockerd leaves such files for a minute, or this
// process cannot see the mount. In neither case may the endpoint block others for ever.
func (f *evidence) awaiting(e *state.Endpoint) verdict {
	switch {
	case f.exists:
		return alive("its sandbox exists now")
	case f.old(e) && f.missing || f.late(e):
		return dead("its container never started")
	case f.docker == hasNot:
		return dead("Docker no longer has it")
	case f.old(e) && f.docker != has:
		return unsure("its container never started, or the mount of its sandbox %s is hidden from this process", e.Sandbox)
	}
	return alive("its sandbox does not exist yet")
}

// lease judges a lease. Docker asks for an address before it creates the endpoint, and releases
// the address after it removed the endpoint. If Docker has the address but none of our endpoints
// uses it, it may belong to a container on another driver's network (-d macvlan --ipam-driver
// patchbay), and only Docker knows.
func (f *evidence) lease(l *state.Allocation) verdict {
	switch {
	case f.use.state != life.Dead:
		return f.use
	case l.Boot != "" && l.Boot != f.boot:
		return dead("they are from before the node booted")
	case (l.Endpoint != "" || l.Unbound || len(l.Given) == 0) && f.age(l.Since) >= f.grace:
		return dead("no endpoint uses them")
	case f.docker == hasNot:
		return dead("no container of Docker has them")
	}
	return alive("Docker asked for them")
}

// network judges a network by whether it was deleted and whether Docker has it.
func (f *evidence) network(n *state.Network) verdict {
	switch {
	case n.Deleted:
		return dead("it was not removed completely")
	case f.docker == hasNot:
		return f.unlessUsed("Docker no longer has it")
	}
	return alive("Docker made it")
}

func (f *evidence) pool(*state.Pool) verdict {
	if f.docker == hasNot {
		return dead("no network of Docker uses it")
	}
	return alive("Docker asked for it")
}

// unlessUsed judges an object that Docker no longer has. While a running container uses the
// object, it is not dead: Docker may have lost its own state.
func (f *evidence) unlessUsed(why string) verdict {
	if f.use.state == life.Dead {
		return dead(why)
	}
	return f.use
}

// here reports whether the sandbox that the endpoint joined still exists.
func (f *evidence) here(e *state.Endpoint) bool { return f.exists && f.sandbox == e.SandboxID }

// old reports whether the endpoint's last step was longer ago than the grace period. No call
// takes as long as the grace period.
func (f *evidence) old(e *state.Endpoint) bool { return f.age(e.Changed) >= f.grace }

// late reports whether Docker's next call is overdue, and another endpoint wants the address or
// port of this one.
func (f *evidence) late(e *state.Endpoint) bool { return f.wanted && f.age(e.Changed) >= awaitTime }

// age returns the time since the last step. If the clock was set back meanwhile, the last step is
// in the future. Then age returns how far.
func (f *evidence) age(last time.Time) time.Duration { return f.now.Sub(last).Abs() }

// passing reports whether an endpoint waits for Docker's next call, or for its sandbox.
func passing(e *state.Endpoint) bool {
	switch e.Phase {
	case state.Created, state.Joining, state.Leaving, state.Left:
		return true
	}
	return awaitsSandbox(e)
}

// awaitsSandbox reports whether an endpoint's sandbox does not exist yet. Before Docker 28 that
// is so between Join and the start of the container.
func awaitsSandbox(e *state.Endpoint) bool {
	return e.Phase == state.Joined && e.SandboxID == (netns.ID{})
}

// unfinished reports whether the setup in a sandbox is incomplete. Docker may still ask for the
// rest, unless its call was killed or lost. If the container already runs, the call was lost.
func (f *evidence) unfinished(e *state.Endpoint) bool {
	return e.Phase == state.Joined && f.here(e) && !e.Closed && !finished(e)
}

// abandoned reports whether Docker will not release the address of a dead endpoint. Docker
// releases an address before it ends the sandbox. If it gives up a start, it releases the address
// at once.
func (f *evidence) abandoned(e *state.Endpoint) bool {
	ended := e.Phase == state.Joined && !awaitsSandbox(e) && !f.here(e)
	return e.Boot != f.boot || ended || f.late(e)
}
