// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"

	"github.com/patchbay-net/patchbay/cnm"
	"github.com/patchbay-net/patchbay/docker/state"
	"github.com/patchbay-net/patchbay/spec"
)

// EndpointOperInfo implements cnm.NetworkDriver. Docker calls it for every endpoint after
// it moved the interface and before the container's process starts, and again later; the
// first call with an existing sandbox runs the rest of the chain. Docker ignores its
// errors, so on an error the driver itself keeps the container from the network.
func (d *Driver) EndpointOperInfo(ctx context.Context, in *cnm.EndpointRequest) (*cnm.EndpointInfo, error) {
	ctx, cancel := d.limit(ctx)
	defer cancel()
	e, release, err := d.enter(ctx, in.EndpointID)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := d.finishOrClose(ctx, e); err != nil {
		return nil, err
	}
	return &cnm.EndpointInfo{Value: info(e)}, nil
}

func (d *Driver) finishOrClose(ctx context.Context, e *state.Endpoint) error {
	err := d.finish(ctx, e)
	if err == nil {
		return nil
	}
	d.opts.Log("endpoint %.12s: %v", e.ID, err)
	return errors.Join(err, d.failClosed(e))
}

func info(e *state.Endpoint) map[string]any {
	out := map[string]any{"phase": e.Phase, "sandbox": e.Sandbox}
	if e.Container != "" {
		out["container"] = e.Container
	}
	if len(e.Published) > 0 {
		out["ports"] = Ports(e.Published).String()
	}
	return out
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
		if err := d.delPost(ctx, n, e); err != nil {
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

// delPost undoes the part, even if it is half done.
func (d *Driver) delPost(ctx context.Context, n *network, e *state.Endpoint) error {
	if e.Post == "" {
		return nil
	}
	if list := n.part(post); len(list.Plugins) > 0 {
		at, err := gone(e, e.PostAt)
		if err != nil {
			return err
		}
		if err := d.run[post].Del(ctx, list, d.attachment(e, at)); err != nil {
			return err
		}
	}
	e.Post, e.PostAt = "", state.Where{}
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
