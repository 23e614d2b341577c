// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/cnm/docker/state"
	"github.com/patchbay-net/patchbay/internal/once"
	"github.com/patchbay-net/patchbay/internal/sleep"
	"github.com/patchbay-net/patchbay/netns"
)

// sweepEvery is how often Keep sweeps, at most.
const sweepEvery = time.Minute

// Keep sweeps now and then until ctx ends, and asks Docker now and then.
func (d *Driver) Keep(ctx context.Context) {
	if d.opts.Engine != nil {
		go d.keepAsking(ctx)
	}
	every := max(min(sweepEvery, d.opts.Grace/2), time.Second)
	var last once.Failure
	// At first more often: Docker may have started a container while nobody answered
	// the call that was to finish its network.
	for pause := placeTime; ; pause = min(2*pause, every) {
		_, err := d.Sweep(ctx)
		d.news(ctx, &last, err)
		if !sleep.For(ctx, pause) {
			return
		}
	}
}

// news logs what goes wrong again and again when it changes.
func (d *Driver) news(ctx context.Context, last *once.Failure, err error) {
	if ctx.Err() == nil && last.News(err) && err != nil {
		d.opts.Log("%v", err)
	}
}

// Item is something that nobody uses.
type Item struct {
	Kind    string `json:"kind"` // endpoint, addresses, network, pool
	Name    string `json:"name"`
	Why     string `json:"why"`
	Removed bool   `json:"removed"`
	Error   string `json:"error,omitempty"`
}

// sweep is one look at everything.
type sweep struct {
	grace time.Duration // what is younger stays
	dry   bool          // remove nothing
	found []Item

	wanted    bool // somebody else asks for what it has
	keepLease bool // its MAC address is asked for again
}

// take removes an item, unless it is only to be told.
func (s *sweep) take(d *Driver, i Item, remove func() error) error {
	var err error
	if !s.dry {
		d.opts.Log("%s %s: %s: removing it", i.Kind, i.Name, i.Why)
		if err = remove(); err != nil {
			i.Error = err.Error()
		}
		i.Removed = err == nil
	}
	s.found = append(s.found, i)
	return err
}

// Sweep removes what dockerd will never delete: endpoints of containers that
// were gone when it came back, calls that were cut short with this process or
// the node, deletes that failed. It asks dockerd nothing, since that may be
// waiting for us: the boot id, the sandbox and the phase tell. It returns how
// many endpoints it removed.
func (d *Driver) Sweep(ctx context.Context) (removed int, err error) {
	s := &sweep{grace: d.opts.Grace}
	err = d.sweep(ctx, s)
	for _, i := range s.found {
		if i.Kind == kindEndpoint && i.Removed {
			removed++
		}
	}
	return removed, err
}

func (d *Driver) sweep(ctx context.Context, s *sweep) error {
	all, err := d.store.Endpoints()
	errs := []error{err}
	for _, e := range all {
		if ctx.Err() != nil { // gc lets go for a driver that starts
			return context.Cause(ctx)
		}
		errs = append(errs, d.sweepOne(ctx, s, e.ID))
	}
	return errors.Join(append(errs, d.sweepNetworks(ctx, s), d.sweepLeases(ctx, s))...)
}

// The kinds of items.
const (
	kindEndpoint  = "endpoint"
	kindAddresses = "addresses"
	kindNetwork   = "network"
	kindPool      = "pool"
)

func (d *Driver) sweepOne(ctx context.Context, s *sweep, id string) error {
	return d.known(ctx, id, func(ctx context.Context, e *state.Endpoint) error { return d.judge(ctx, s, e) })
}

// judge removes an endpoint that is dead, and goes on with one whose call was cut
// short.
func (d *Driver) judge(ctx context.Context, s *sweep, e *state.Endpoint) error {
	f := facts{boot: d.boot, grace: s.grace, wanted: s.wanted, now: time.Now()}
	if err := f.look(e); err != nil {
		return fmt.Errorf("endpoint %.12s: whether its sandbox is gone: %w", e.ID, err)
	}
	if toCome(e) && f.there {
		if s.dry {
			return nil
		}
		return d.adopt(e, f.sandbox)
	}
	why := f.dead(e)
	if why == "" && !s.dry && f.unfinished(e) && (begun(e) || f.old(e) || d.runs(&f, e)) {
		return d.finishOrClose(ctx, e)
	}
	if why == "" && !s.dry && d.lostPorts(&f, e) {
		return d.republish(ctx, e)
	}
	if why == "" {
		if e.Keeper != "" && e.Phase == state.Joined && !s.dry {
			d.untold(e, d.arrived(ctx, e))
		}
		return nil
	}
	lease := unbind
	if f.abandoned(e) && !s.keepLease {
		lease = abandon
	}
	return s.take(d, Item{Kind: kindEndpoint, Name: short(e.ID, 12), Why: why}, func() error { return d.remove(ctx, e, lease) })
}

// facts are what an endpoint is judged by.
type facts struct {
	boot   string
	grace  time.Duration
	wanted bool
	now    time.Time

	sandbox netns.ID
	there   bool // a namespace is at the sandbox's path
	missing bool // nothing is
}

func (f *facts) look(e *state.Endpoint) (err error) {
	f.sandbox, f.there, err = live(e.Sandbox)
	_, none := os.Lstat(e.Sandbox)
	f.missing = errors.Is(none, fs.ErrNotExist)
	return err
}

// dead says why nobody will ask for an endpoint again; "" when somebody may. It
// is judged with the endpoint's lock held, so a phase in -ing is one whose call
// was killed.
func (f *facts) dead(e *state.Endpoint) string {
	old, late := f.old(e), f.wanted && f.late(e)
	switch {
	case e.Boot != f.boot:
		return "it is from before the node booted"
	case e.Phase == state.Creating:
		return "it was never finished, and Docker knows"
	case e.Phase == state.Deleting:
		return "it was not removed completely"
	case e.Phase != state.Joined:
		if old || late {
			return fmt.Sprintf("it is %s since %v", e.Phase, e.Changed.Format(time.RFC3339))
		}
	case toCome(e):
		// Where a sandbox was dockerd leaves a file for a minute. Elsewhere it may be
		// a mount that we do not see, which is no reason to be in the way for ever.
		if old && f.missing || late && !f.there {
			return "its container never came"
		}
	case !f.there || f.sandbox != e.SandboxID:
		return "its sandbox is gone"
	}
	return ""
}

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
	return e.Phase == state.Joined && f.there && f.sandbox == e.SandboxID && !e.Closed && !finished(e)
}

// begun says whether a call that was to finish it was killed.
func begun(e *state.Endpoint) bool {
	return e.Post == state.Doing || e.DNS != nil && e.DNS.Step == state.Doing
}

// placeTime is more than Docker takes to set up an interface that it was told of:
// milliseconds.
const placeTime = time.Second

// runs says whether a container runs with the interface, so that nobody who sets
// it up is disturbed. runc's init waits until that is done; another runtime's looks
// like a container, as do those of a container that is connected when it runs.
func (d *Driver) runs(f *facts, e *state.Endpoint) bool {
	return f.age(e) >= d.opts.place && d.placed(e) && d.populated(f.sandbox)
}

// placed says whether the interface is up in the sandbox: Docker sets it up when it
// has its addresses.
func (d *Driver) placed(e *state.Endpoint) bool {
	c, link, err := d.sandboxLink(e)
	if err != nil {
		return false
	}
	c.Close()
	return isUp(link)
}

func isUp(link netlink.Link) bool { return link.Attrs().RawFlags&unix.IFF_UP != 0 }

// old is how nobody's call takes any more.
func (f *facts) old(e *state.Endpoint) bool { return f.age(e) >= f.grace }

// late is when Docker's next call does not come any more, as far as somebody need
// wait who wants what the endpoint has.
func (f *facts) late(e *state.Endpoint) bool { return f.age(e) >= awaitTime }

// age is the time since the last step. The clock may have been set meanwhile, so
// what is from the future is as old as it is far away.
func (f *facts) age(e *state.Endpoint) time.Duration { return f.now.Sub(e.Changed).Abs() }

// abandoned says whether a dead endpoint's address will not be given back by
// Docker, which does that before it ends the sandbox, and right after a start that
// it gave up.
func (f *facts) abandoned(e *state.Endpoint) bool {
	return e.Boot != f.boot || e.Phase == state.Joined && e.SandboxID != (netns.ID{}) || f.wanted && f.late(e)
}

// adopt writes down the sandbox that came after Join, as before Docker 28. By it
// the end of the container is seen.
func (d *Driver) adopt(e *state.Endpoint, id netns.ID) error {
	e.SandboxID = id
	d.identify(e, id)
	return d.save(e)
}

// How long, and how often, is waited for what Docker does after Join: within
// milliseconds.
const (
	awaitTime  = 10 * time.Second
	awaitEvery = 50 * time.Millisecond
)

// await tries until done. No call waits for it; what it misses is Sweep's.
func await(done func(context.Context) bool) {
	ctx, cancel := context.WithTimeout(context.Background(), awaitTime)
	defer cancel()
	tick := time.NewTicker(awaitEvery)
	defer tick.Stop()
	for !done(ctx) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// adoptOnce adopts the sandbox, and says whether it is there.
func (d *Driver) adoptOnce(ctx context.Context, endpointID, path string) bool {
	if _, there, _ := live(path); !there {
		return false
	}
	if err := d.sweepOne(ctx, &sweep{grace: d.opts.Grace}, endpointID); err != nil {
		d.opts.Log("endpoint %.12s: %v", endpointID, err)
	}
	return true
}
