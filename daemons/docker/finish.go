// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/docker/state"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

// EndpointOperInfo implements cnm.NetworkDriver. Docker calls it for every endpoint, after
// moving the interface and before starting the container's process. Docker calls it again later.
// The first call that finds the sandbox runs the rest of the chain. Docker ignores an error. So
// if the chain fails, the driver itself disconnects the container from the network.
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

// finish does, once, the work that needs the interface in the sandbox: it runs the part post and
// writes the container's resolv.conf.
func (d *Driver) finish(ctx context.Context, e *state.Endpoint) error {
	if e.Phase != state.Joined || finished(e) && !shut(e) {
		return nil
	}
	id, exists, err := live(e.Sandbox)
	if !exists {
		return err
	}
	e.SandboxID = id
	n, err := d.networkOf(e)
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

// finished reports whether the work in the sandbox is complete.
func finished(e *state.Endpoint) bool { return e.Post == state.Done && hasDNS(e) }

func hasDNS(e *state.Endpoint) bool { return e.DNS == nil || e.DNS.Step == state.Done }

func (d *Driver) finishPost(ctx context.Context, n *network, e *state.Endpoint) error {
	c, link, err := d.sandboxLink(e)
	if err != nil {
		return err
	}
	defer c.Close()
	if !shut(e) { // for a link that was down, reopen restores the routes
		if err := exact(c, link.Attrs().Index, e.Kernel, n.Internal); err != nil {
			return err
		}
	}
	return d.addPost(ctx, n, e, state.Where{NetNS: e.Sandbox, IfName: link.Attrs().Name})
}

// addPost runs the part post. If an earlier ADD of this part was killed, it first undoes that.
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

// ran returns the fields of an endpoint that record how far a part in the container's namespace
// has come.
func ran(e *state.Endpoint, p part) (step *state.Step, at *state.Where) {
	if p == ports {
		return &e.Ports, &e.PortsAt
	}
	return &e.Post, &e.PostAt
}

// del undoes a part, even if the part is half done. For the part ports, del first records that
// the ports are no longer published. If this process is killed after that, and the endpoint becomes
// the gateway again, the driver publishes the ports again.
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
		at, err := dropDeletedNetNS(e, *was)
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
		if p == ports {
			nft.AwaitTick(nft.Ticks()) // portmap leaves this to the DEL of the link, which does not follow here
		}
	}
	*step, *was = "", state.Where{}
	if p == ports {
		e.Published = nil
	}
	return d.save(e)
}

// dropDeletedNetNS empties the namespace in the place of an ADD if that namespace no longer exists. It does
// the same if another namespace has the path now, because the path then belongs to another
// container.
func dropDeletedNetNS(e *state.Endpoint, at state.Where) (state.Where, error) {
	id, exists, err := live(at.NetNS)
	if !exists || at.NetNS == e.Sandbox && id != e.SandboxID {
		at.NetNS = ""
	}
	return at, err
}

// result returns the result of the chain so far, which the part ports gets.
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

// complete does, for a living endpoint, the work of a call of Docker that was lost.
func (d *Driver) complete(ctx context.Context, f *evidence, e *state.Endpoint) error {
	switch {
	case awaitsSandbox(e) && f.exists:
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

// begun reports whether a call was killed while it was finishing the endpoint.
func begun(e *state.Endpoint) bool {
	return e.Post == state.Doing || e.DNS != nil && e.DNS.Step == state.Doing
}

// placeTime is how long after Join the driver looks for the interface in the sandbox. Docker
// takes milliseconds to set it up.
const placeTime = time.Second

// runs reports whether a container runs with the interface. Then Docker has finished the setup.
// runc's init does not count, because it waits for the end of the setup. runs cannot distinguish
// the init of a runtime other than runc from a running container that is just being connected.
func (d *Driver) runs(f *evidence, e *state.Endpoint) bool {
	if f.age(e.Changed) < d.opts.place {
		return false
	}
	c, link, err := d.sandboxLink(e)
	if err != nil {
		return false
	}
	c.Close()
	return isUp(link) && d.populated(f.sandbox) // Docker sets the link up after it has added the addresses
}

func isUp(link netlink.Link) bool { return link.Attrs().RawFlags&unix.IFF_UP != 0 }

// adopt records a sandbox that appeared only after Join, as before Docker 28. With the sandbox
// the driver can see when the container ends.
func (d *Driver) adopt(e *state.Endpoint, id netns.ID) error {
	e.SandboxID = id
	d.identify(e, id)
	return d.save(e)
}

// These say how long, and how often, the driver looks for what Docker does after Join. Docker
// takes milliseconds.
const (
	awaitTime  = 10 * time.Second
	awaitEvery = 50 * time.Millisecond
)

// await calls done until done returns true. No call of Docker waits for await. If await gives up,
// the collector does the work.
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

// adoptOnce adopts the sandbox, and reports whether the sandbox exists. It removes nothing for its age:
// Docker may have gone on meanwhile, and its next call may be on the way.
func (d *Driver) adoptOnce(ctx context.Context, endpointID, path string) bool {
	if _, exists, _ := live(path); !exists {
		return false
	}
	c := &collector{d: d, grace: math.MaxInt64}
	if err := c.endpoint(ctx, endpointID); err != nil {
		d.opts.Log("endpoint %.12s: %v", endpointID, err)
	}
	return true
}
