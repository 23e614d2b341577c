// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/docker/state"
	"github.com/patchbay-net/patchbay/netns"
)

// complete does for a living endpoint what a lost call did not.
func (d *Driver) complete(ctx context.Context, f *facts, e *state.Endpoint) error {
	switch {
	case awaitsSandbox(e) && f.there:
		return d.adopt(e, f.sandbox)
	case f.unfinished(e) && (begun(e) || f.old(e) || d.runs(f, e)):
		return d.finishOrClose(ctx, e)
	case d.lostPorts(f, e):
		return d.republish(ctx, e)
	case e.Keeper != "" && e.Phase == state.Joined:
		d.logKeeper(e, d.notifyArrival(ctx, e))
	}
	return nil
}

// begun says whether a call that was finishing the endpoint was killed.
func begun(e *state.Endpoint) bool {
	return e.Post == state.Doing || e.DNS != nil && e.DNS.Step == state.Doing
}

// placeTime is longer than Docker takes to set up an interface after Join: that takes
// milliseconds.
const placeTime = time.Second

// runs says whether a container runs with the interface, so that Docker's setup of it is
// over. runc's init waits for the end of the setup; another runtime's process looks like
// a container, and so do the processes of a running container that is being connected.
func (d *Driver) runs(f *facts, e *state.Endpoint) bool {
	return f.age(e.Changed) >= d.opts.place && d.placed(e) && d.populated(f.sandbox)
}

// placed says whether the interface is up in the sandbox: Docker sets it up once it has
// its addresses.
func (d *Driver) placed(e *state.Endpoint) bool {
	c, link, err := d.sandboxLink(e)
	if err != nil {
		return false
	}
	c.Close()
	return isUp(link)
}

func isUp(link netlink.Link) bool { return link.Attrs().RawFlags&unix.IFF_UP != 0 }

// adopt records the sandbox that appeared after Join, as before Docker 28. With it the
// driver sees the end of the container.
func (d *Driver) adopt(e *state.Endpoint, id netns.ID) error {
	e.SandboxID = id
	d.identify(e, id)
	return d.save(e)
}

// Limit and interval of the wait for what Docker does after Join, which takes
// milliseconds.
const (
	awaitTime  = 10 * time.Second
	awaitEvery = 50 * time.Millisecond
)

// await tries until done. No call waits for it; Sweep does what it misses.
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

// adoptOnce adopts the sandbox, and says whether it exists.
func (d *Driver) adoptOnce(ctx context.Context, endpointID, path string) bool {
	if _, there, _ := live(path); !there {
		return false
	}
	c := &collector{d: d, grace: d.opts.Grace}
	if err := c.endpoint(ctx, endpointID); err != nil {
		d.opts.Log("endpoint %.12s: %v", endpointID, err)
	}
	return true
}
