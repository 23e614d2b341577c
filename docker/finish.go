// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/cnm"
	"github.com/patchbay-net/patchbay/docker/state"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

// EndpointOperInfo implements cnm.NetworkDriver. Docker calls it for every endpoint after
// it moved the interface and before the container's process starts, and again later; the
// first call with an existing sandbox runs the rest of the chain. Docker ignores its
// errors, so on an error the driver itself keeps the container from the network.
func (d *Driver) EndpointOperInfo(ctx context.Context, in *cnm.EndpointRequest) (out *cnm.EndpointInfo, err error) {
	err = d.enter(ctx, in.EndpointID, func(ctx context.Context, e *state.Endpoint) error {
		if err := d.finishOrClose(ctx, e); err != nil {
			return err
		}
		out = &cnm.EndpointInfo{Value: map[string]any{"phase": e.Phase, "sandbox": e.Sandbox}}
		if e.Container != "" {
			out.Value["container"] = e.Container
		}
		if len(e.Published) > 0 {
			out.Value["ports"] = portList(e.Published).String()
		}
		return nil
	})
	return out, err
}

func (d *Driver) finishOrClose(ctx context.Context, e *state.Endpoint) error {
	err := d.finish(ctx, e)
	if err == nil {
		return nil
	}
	d.opts.Log("endpoint %.12s: %v", e.ID, err)
	return errors.Join(err, d.failClosed(e))
}

// finish does once what needs the interface in the sandbox: the post part, and the
// container's resolv.conf.
func (d *Driver) finish(ctx context.Context, e *state.Endpoint) error {
	if e.Phase != state.Joined || finished(e) && !shut(e) {
		return nil
	}
	id, there, err := live(e.Sandbox)
	if !there {
		return err
	}
	e.SandboxID = id
	n, err := d.network(e.Network)
	if err != nil {
		return err
	}
	d.identify(e, id)
	if e.Post != state.Done {
		if err := d.finishPost(ctx, n, e); err != nil {
			return err
		}
	}
	if !hasDNS(e) {
		if err := d.replaceDNS(n, e); err != nil {
			return err
		}
	}
	return d.reopen(n, e)
}

// finished says whether the work in the sandbox is complete.
func finished(e *state.Endpoint) bool { return e.Post == state.Done && hasDNS(e) }

func hasDNS(e *state.Endpoint) bool { return e.DNS == nil || e.DNS.Step == state.Done }

func (d *Driver) finishPost(ctx context.Context, n *network, e *state.Endpoint) error {
	c, link, err := d.sandboxLink(e)
	if err != nil {
		return err
	}
	defer c.Close()
	if !shut(e) { // otherwise reopen does it: a link that is down has no routes
		if err := exact(c, link.Attrs().Index, e.Kernel, n.Internal); err != nil {
			return err
		}
	}
	return d.addPost(ctx, n, e, state.Where{NetNS: e.Sandbox, IfName: link.Attrs().Name})
}

// addPost runs the part. It first undoes an ADD that was killed.
func (d *Driver) addPost(ctx context.Context, n *network, e *state.Endpoint, at state.Where) error {
	if e.Post == state.Doing {
		if err := d.del(ctx, n, e, post); err != nil {
			return err
		}
	}
	list := n.part(post)
	e.Post, e.PostAt = state.Doing, at
	if err := d.save(e); err != nil {
		return err
	}
	if len(list.Plugins) > 0 {
		a := d.attachment(e, at)
		a.Prev = moved(e.Result, e.Hold, at.NetNS, at.IfName)
		if _, err := d.run[post].Add(ctx, list, a); err != nil {
			return err
		}
	}
	e.Post = state.Done
	return d.save(e)
}

// ran is where the progress of a part in the container's namespace is recorded.
func ran(e *state.Endpoint, p part) (step *state.Step, at *state.Where) {
	if p == ports {
		return &e.Ports, &e.PortsAt
	}
	return &e.Post, &e.PostAt
}

// del undoes a part, even if it is half done. The endpoint may become the gateway again: if
// this process is killed here, its ports must not look published then.
func (d *Driver) del(ctx context.Context, n *network, e *state.Endpoint, p part) error {
	step, was := ran(e, p)
	if *step == "" {
		return nil
	}
	if p == ports && *step == state.Done && e.Phase == state.Joined {
		*step = state.Doing
		if err := d.save(e); err != nil {
			return err
		}
	}
	if list := n.part(p); len(list.Plugins) > 0 {
		at, err := gone(e, *was)
		if err != nil {
			return err
		}
		a := d.attachment(e, at)
		if p == ports {
			a.Capabilities[portMappings] = mappings(e.Published)
		}
		if err := d.run[p].Del(ctx, list, a); err != nil {
			return err
		}
	}
	*step, *was = "", state.Where{}
	if p == ports {
		e.Published = nil
	}
	return d.save(e)
}

// gone removes the namespace from an ADD's place if it no longer exists, or if another
// one has its path: that one is another container's.
func gone(e *state.Endpoint, at state.Where) (state.Where, error) {
	id, there, err := live(at.NetNS)
	if !there || at.NetNS == e.Sandbox && id != e.SandboxID {
		at.NetNS = ""
	}
	return at, err
}

// result is the chain's result so far, for the ports part.
func (d *Driver) result(n *network, e *state.Endpoint, at state.Where) (*spec.Result, error) {
	if e.Post == state.Done {
		c, err := d.run[post].Cached(n.list.Name, d.attachment(e, e.PostAt))
		if err != nil {
			return nil, err
		}
		if c != nil && c.Result != nil {
			return moved(c.Result, e.PostAt.NetNS, at.NetNS, at.IfName), nil
		}
	}
	return moved(e.Result, e.Hold, at.NetNS, at.IfName), nil
}

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
	if f.age(e.Changed) < d.opts.place {
		return false
	}
	c, link, err := d.sandboxLink(e)
	if err != nil {
		return false
	}
	c.Close()
	return isUp(link) && d.populated(f.sandbox) // Docker sets it up once it has its addresses
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

// await tries until done. No call waits for it; the collector does what it misses.
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
