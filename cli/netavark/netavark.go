// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package netavark makes CNI networks available to podman 5 and later, which have no CNI. Their program netavark executes
// a plugin for each network whose driver is not its own: `create` makes a network of podman's, `setup` and `teardown`
// attach and detach a container, `info` is for people. This package answers these calls with package chain.
//
// A network of podman's only names a CNI network (options.go), whose file decides about everything else. So create refuses
// what would be configured in two places (create.go). An attachment has podman's container id and interface name, and
// its result is in the runtime's cache, as with any other CNI runtime.
package netavark

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/patchbay-net/patchbay/chain"
)

// apiVersion is the version of netavark's protocol.
const apiVersion = "1.0.0"

// These are the calls.
const (
	create   = "create"
	setup    = "setup"
	teardown = "teardown"
	info     = "info"
)

// Called reports whether arguments of a process are those of a call.
func Called(args []string) bool {
	switch {
	case len(args) == 1:
		return args[0] == create || args[0] == info
	case len(args) == 2:
		return args[0] == setup || Removes(args)
	}
	return false
}

// Removes reports whether a call removes something. netavark makes such a call even if a signal has ended podman, and
// sends the plugin with its signals ignored.
func Removes(args []string) bool { return args[0] == teardown }

// Asked reports whether a call has no input.
func Asked(args []string) bool { return args[0] == info }

// Driver answers calls.
type Driver struct {
	// Find returns a CNI network, and the runtime for its plugins. If there is no such network, Find returns an error
	// that wraps chain.ErrNoNetwork, together with a runtime.
	Find     func(name string) (*chain.List, *chain.Runtime, error)
	Warn     func(error)
	Version  string
	Rootless bool // podman runs in a user namespace
}

// Serve answers the call with the arguments args, and returns the exit status. After an error, the answer is an object with
// the only field that podman's create accepts.
func (d *Driver) Serve(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) (exit int) {
	answer, err := d.answer(ctx, args, stdin)
	if err != nil {
		answer, exit = map[string]string{"error": err.Error()}, 1
	}
	if answer == nil {
		return exit
	}
	out, err := json.Marshal(answer)
	if err == nil {
		_, err = stdout.Write(append(out, '\n'))
	}
	if err == nil {
		return exit
	}
	if s, attached := answer.(*status); attached { // podman knows nothing of it, and calls no teardown
		err = errors.Join(err, s.undo())
	}
	d.Warn(fmt.Errorf("answer netavark: %w", err))
	return 1
}

func (d *Driver) answer(ctx context.Context, args []string, stdin io.Reader) (any, error) {
	if Asked(args) {
		return map[string]string{"version": d.Version, "api_version": apiVersion}, nil
	}
	input, err := io.ReadAll(stdin)
	if err != nil {
		return nil, fmt.Errorf("read netavark's call: %w", err)
	}
	if args[0] == create {
		return d.create(ctx, input)
	}
	c := new(call)
	if err := json.Unmarshal(input, c); err != nil {
		return nil, fmt.Errorf("read netavark's call %s: %w", args[0], err)
	}
	if args[0] == teardown {
		return nil, d.teardown(ctx, c, args[1])
	}
	return d.setup(ctx, c, args[1])
}

// setup attaches a container. If the container did not get what it asked for, setup detaches it again.
func (d *Driver) setup(ctx context.Context, c *call, netns string) (*status, error) {
	list, rt, err := d.networkFor(c)
	if err != nil {
		return nil, err
	}
	a := c.attachment(netns)
	d.removeLast(ctx, rt, list, a)
	result, err := rt.Add(ctx, list, a)
	if err != nil {
		return nil, err
	}
	s := c.statusOf(result, d.Warn)
	s.undo = func() error { return rt.Del(context.WithoutCancel(ctx), list, a) }
	if err := c.got(s, list.Name); err != nil {
		return nil, errors.Join(err, s.undo())
	}
	return s, nil
}

// networkFor returns the CNI network of a call, with the capabilities that the container needs.
func (d *Driver) networkFor(c *call) (*chain.List, *chain.Runtime, error) {
	o, err := c.options()
	if err != nil {
		return nil, nil, err
	}
	list, rt, err := d.Find(o.network)
	if err != nil {
		return nil, nil, err
	}
	if !o.portmap {
		c.Ports = nil
	}
	if len(c.Ports) > 0 && !d.Rootless { // without root, podman's own forwarder publishes
		list, err = publishing(list)
	}
	if err == nil && len(c.addresses()) > 1 {
		list, err = withFixedIPs(list)
	}
	return list, rt, err
}

// removeLast removes what the cache has of the attachment. podman detaches a container before it attaches it again, except after
// a crash and a reboot. So a cached container has ended, and its address must not be allocated twice. If the DEL
// fails, the ADD may still succeed, and gc finds what is left.
func (d *Driver) removeLast(ctx context.Context, rt *chain.Runtime, list *chain.List, a chain.Attachment) {
	last, err := rt.Cached(list.Name, a)
	if last != nil {
		a = chain.Attachment{ContainerID: a.ContainerID, NetNS: last.Place(), IfName: a.IfName}
		err = rt.DelCached(ctx, list.Name, a)
	}
	if err != nil {
		d.Warn(fmt.Errorf("remove what an earlier start of container %s left on CNI network %s: %w", a.ContainerID, list.Name, err))
	}
}

// teardown detaches a container. podman never repeats the call, not even after an error. So teardown succeeds if
// nothing is attached, and gc finds what is left after an error.
func (d *Driver) teardown(ctx context.Context, c *call, netns string) error {
	o, err := c.options()
	if err != nil {
		return err
	}
	_, rt, err := d.Find(o.network)
	if rt == nil {
		return err
	}
	a := c.attachment(netns)
	return rt.Detach(ctx, chain.Container{ID: a.ContainerID, NetNS: netns, Args: a.Args, Capabilities: a.Capabilities},
		chain.Network{Name: o.network, IfName: a.IfName})
}
