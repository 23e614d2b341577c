// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"fmt"
	"time"

	"github.com/patchbay-net/patchbay/docker/state"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/netns"
)

// verdict says whether a thing that the driver keeps is alive. The collector removes what
// is dead, keeps what is alive, and keeps and reports what is unsure. The zero verdict is
// unsure.
type verdict struct {
	state life.State
	why   string
}

func alive(why string) verdict { return verdict{life.Alive, why} }
func dead(why string) verdict  { return verdict{life.Dead, why} }

func unsure(format string, args ...any) verdict {
	return verdict{life.Unsure, fmt.Sprintf(format, args...)}
}

// listing says whether Docker has a thing.
type listing int

const (
	notAsked listing = iota // or the thing is so young that Docker may not know it yet
	has
	hasNot
)

// facts are everything that a verdict depends on. If Docker was not asked, this alone
// makes nothing dead.
type facts struct {
	now    time.Time
	boot   string
	grace  time.Duration // unused things are kept that long
	wanted bool          // another endpoint needs what it has

	docker listing
	// use says whether a living user has the thing: an endpoint's sandbox its interface,
	// a container a network, an endpoint a lease.
	use verdict

	sandbox netns.ID // the namespace at the sandbox's path
	there   bool     // there is a namespace at the path
	missing bool     // there is no file at the path
	unseen  error    // why this is unknown
}

// endpoint judges with the endpoint's lock held, so a phase in -ing means that its call
// was killed.
func (f *facts) endpoint(e *state.Endpoint) verdict {
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
func (f *facts) between(e *state.Endpoint) verdict {
	if f.old(e) || f.late(e) {
		return dead(fmt.Sprintf("it is %s since %v", e.Phase, e.Changed.Format(time.RFC3339)))
	}
	return alive("it waits for Docker's next call")
}

// awaiting judges an endpoint that waits for its sandbox. A file without a namespace at the
// sandbox's path is either left by dockerd, for a minute, or the place of a mount that this
// process does not see; neither may block others for ever.
func (f *facts) awaiting(e *state.Endpoint) verdict {
	switch {
	case f.there:
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

// lease is judged by its use: Docker requests an address first, and releases it last. An
// address that Docker got and no endpoint of ours has may belong to a container on
// another driver's network (-d macvlan --ipam-driver patchbay), which only Docker knows.
func (f *facts) lease(l *state.Allocation) verdict {
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

// network is judged by its deletion and by what Docker has.
func (f *facts) network(n *state.Network) verdict {
	switch {
	case n.Deleted:
		return dead("it was not removed completely")
	case f.docker == hasNot:
		return f.unlessUsed("Docker no longer has it")
	}
	return alive("Docker made it")
}

func (f *facts) pool(*state.Pool) verdict {
	if f.docker == hasNot {
		return dead("no network of Docker uses it")
	}
	return alive("Docker asked for it")
}

// unlessUsed judges what Docker no longer has. A running container keeps it, as after a
// loss of Docker's own state.
func (f *facts) unlessUsed(why string) verdict {
	if f.use.state == life.Dead {
		return dead(why)
	}
	return f.use
}

// here says whether the sandbox that the endpoint joined still exists.
func (f *facts) here(e *state.Endpoint) bool { return f.there && f.sandbox == e.SandboxID }

// old says whether the last step is longer ago than any call takes.
func (f *facts) old(e *state.Endpoint) bool { return f.age(e.Changed) >= f.grace }

// late says whether Docker's next call is overdue, if another endpoint waits for what
// this one has.
func (f *facts) late(e *state.Endpoint) bool { return f.wanted && f.age(e.Changed) >= awaitTime }

// age is the time since the last step. The clock may have been set meanwhile, so a time
// in the future counts by its distance.
func (f *facts) age(last time.Time) time.Duration { return f.now.Sub(last).Abs() }

// passing says whether an endpoint waits for Docker's next call, or for its sandbox.
func passing(e *state.Endpoint) bool {
	switch e.Phase {
	case state.Created, state.Joining, state.Leaving, state.Left:
		return true
	}
	return awaitsSandbox(e)
}

// awaitsSandbox says whether an endpoint's sandbox does not exist yet, as before Docker
// 28 between Join and the start of the container.
func awaitsSandbox(e *state.Endpoint) bool {
	return e.Phase == state.Joined && e.SandboxID == (netns.ID{})
}

// unfinished says whether the setup in a sandbox is incomplete. Docker may be about to
// request the rest, unless it was begun and interrupted, or the container runs: then the
// call got lost, and Docker does not repeat it.
func (f *facts) unfinished(e *state.Endpoint) bool {
	return e.Phase == state.Joined && f.here(e) && !e.Closed && !finished(e)
}

// abandoned says whether Docker will not release a dead endpoint's address. Docker does
// that before it ends the sandbox, and right after a start that it gave up.
func (f *facts) abandoned(e *state.Endpoint) bool {
	ended := e.Phase == state.Joined && !awaitsSandbox(e) && !f.here(e)
	return e.Boot != f.boot || ended || f.late(e)
}
