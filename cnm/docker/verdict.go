// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"fmt"
	"time"

	"github.com/patchbay-net/patchbay/cnm/docker/state"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/netns"
)

// verdict answers the one question that is asked of each thing the driver keeps: is
// it alive? The collector removes what is dead, leaves what is alive, and leaves and
// reports what is unsure. The zero verdict is unsure.
type verdict struct {
	state life.State
	why   string
}

func alive(why string) verdict { return verdict{life.Alive, why} }
func dead(why string) verdict  { return verdict{life.Dead, why} }

func unsure(format string, args ...any) verdict {
	return verdict{life.Unsure, fmt.Sprintf(format, args...)}
}

// word is what Docker says of a thing.
type word int

const (
	notAsked word = iota // or the thing is so young that Docker may not know it yet
	has
	hasNot
)

// facts are all that a verdict is made of. Nothing speaks against a thing of which
// Docker was not asked.
type facts struct {
	now    time.Time
	boot   string
	grace  time.Duration // what nothing uses stays as long
	wanted bool          // something else asks for what it has

	docker word
	// use is whether something that lives has the thing: an endpoint's sandbox its
	// interface, a container a network, an endpoint a lease.
	use verdict

	sandbox netns.ID // what is at the path of an endpoint's sandbox
	there   bool     // a namespace is
	missing bool     // nothing is
	unseen  error    // why that cannot be told
}

// endpoint is judged with its lock held, so a phase in -ing is one whose call was
// killed.
func (f *facts) endpoint(e *state.Endpoint) verdict {
	switch {
	case f.unseen != nil:
		return unsure("whether its sandbox is gone cannot be told: %v", f.unseen)
	case e.Boot != f.boot:
		return dead("it is from before the node booted")
	case e.Phase == state.Creating:
		return dead("it was never finished, and Docker knows")
	case e.Phase == state.Deleting:
		return dead("it was not removed completely")
	case e.Phase != state.Joined:
		return f.between(e)
	case toCome(e):
		return f.coming(e)
	case !f.here(e):
		return dead("its sandbox is gone")
	case f.docker == hasNot:
		return f.unlessUsed("Docker has it no more")
	}
	return alive("its sandbox is there")
}

// between judges an endpoint that waits for Docker's next call.
func (f *facts) between(e *state.Endpoint) verdict {
	if f.old(e) || f.late(e) {
		return dead(fmt.Sprintf("it is %s since %v", e.Phase, e.Changed.Format(time.RFC3339)))
	}
	return alive("it waits for Docker's next call")
}

// coming judges an endpoint that waits for its sandbox. Where a sandbox was dockerd
// leaves a file for a minute. Elsewhere it may be a mount that we do not see, which is
// no reason to be in the way for ever.
func (f *facts) coming(e *state.Endpoint) verdict {
	switch {
	case f.there:
		return alive("its sandbox has come")
	case f.old(e) && f.missing || f.late(e):
		return dead("its container never came")
	case f.docker == hasNot:
		return dead("Docker has it no more")
	case f.old(e) && f.docker != has:
		return unsure("its container never came, or the mount of its sandbox %s is hidden from this process", e.Sandbox)
	}
	return alive("its sandbox is to come")
}

// lease is judged by its use: Docker asks for an address first, and gives it back
// last. What Docker was given and no endpoint of ours took may be that of a container
// whose network is another driver's (-d macvlan --ipam-driver patchbay), of which
// Docker alone knows.
func (f *facts) lease(l *state.Lease) verdict {
	switch {
	case f.use.state != life.Dead:
		return f.use
	case l.Boot != "" && l.Boot != f.boot:
		return dead("they are from before the node booted")
	case (l.Endpoint != "" || l.Unbound || len(l.Given) == 0) && f.age(l.Since) >= f.grace:
		return dead("no endpoint uses them")
	case f.docker == hasNot:
		return dead("no container of Docker's has them")
	}
	return alive("Docker asked for them")
}

// network is judged by what Docker said of it, when it was deleted or since.
func (f *facts) network(n *state.Network) verdict {
	switch {
	case n.Deleted:
		return dead("it was not removed completely")
	case f.docker == hasNot:
		return f.unlessUsed("Docker has it no more")
	}
	return alive("Docker made it")
}

func (f *facts) pool(*state.Pool) verdict {
	if f.docker == hasNot {
		return dead("no network of Docker's uses it")
	}
	return alive("Docker asked for it")
}

// unlessUsed is of what Docker has no more. A container that runs keeps it, as after a
// loss of Docker's own state.
func (f *facts) unlessUsed(why string) verdict {
	if f.use.state == life.Dead {
		return dead(why)
	}
	return f.use
}

// here says whether the sandbox is there that the endpoint joined.
func (f *facts) here(e *state.Endpoint) bool { return f.there && f.sandbox == e.SandboxID }

// old is how no call takes any more.
func (f *facts) old(e *state.Endpoint) bool { return f.age(e.Changed) >= f.grace }

// late is when Docker's next call does not come any more, as far as a call need wait
// that wants what the endpoint has.
func (f *facts) late(e *state.Endpoint) bool { return f.wanted && f.age(e.Changed) >= awaitTime }

// age is the time since the last step. The clock may have been set meanwhile, so
// what is from the future is as old as it is far away.
func (f *facts) age(last time.Time) time.Duration { return f.now.Sub(last).Abs() }

// passing says whether an endpoint waits for Docker's next call, or for its
// sandbox.
func passing(e *state.Endpoint) bool {
	switch e.Phase {
	case state.Created, state.Joining, state.Leaving, state.Left:
		return true
	}
	return toCome(e)
}

// toCome says whether an endpoint's sandbox is still to come, as before Docker 28
// between Join and the start of the container.
func toCome(e *state.Endpoint) bool {
	return e.Phase == state.Joined && e.SandboxID == (netns.ID{})
}

// unfinished says whether a sandbox has half a network. Docker may be about to ask
// for the rest, unless that was begun and cut short, or the container runs: then
// the call got lost, and Docker does not ask again.
func (f *facts) unfinished(e *state.Endpoint) bool {
	return e.Phase == state.Joined && f.here(e) && !e.Closed && !finished(e)
}

// abandoned says whether a dead endpoint's address will not be given back by
// Docker, which does that before it ends the sandbox, and right after a start that
// it gave up.
func (f *facts) abandoned(e *state.Endpoint) bool {
	ended := e.Phase == state.Joined && !toCome(e) && !f.here(e)
	return e.Boot != f.boot || ended || f.late(e)
}
