// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/docker/state"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/spec"
)

// ProgramExternalConnectivity implements cnm.Connectivity. Docker calls it for the endpoint that
// has the default gateway. It publishes the container's ports for this endpoint. If it fails, the
// container does not start.
func (d *Driver) ProgramExternalConnectivity(ctx context.Context, in *cnm.ConnectivityRequest) error {
	return d.enter(ctx, in.EndpointID, func(ctx context.Context, e *state.Endpoint) error { return d.program(ctx, in, e) })
}

func (d *Driver) program(ctx context.Context, in *cnm.ConnectivityRequest, e *state.Endpoint) error {
	if e.Phase != state.Joined {
		return fmt.Errorf("endpoint %.12s cannot publish ports: it is %s", e.ID, e.Phase)
	}
	if err := d.finish(ctx, e); err != nil {
		return err
	}
	if _, err := in.Options.Get(cnm.OptionPortMap, &e.Asked); err != nil {
		return err
	}
	if len(e.Asked) == 0 || e.Ports == state.Done {
		return nil
	}
	n, err := d.networkOf(e)
	if err != nil || n.Internal { // like Docker's own drivers, the driver publishes nothing on an internal network
		return err
	}
	return d.addPorts(ctx, n, e)
}

// RevokeExternalConnectivity implements cnm.Connectivity.
func (d *Driver) RevokeExternalConnectivity(ctx context.Context, in *cnm.EndpointRequest) error {
	return d.enterIfExists(ctx, in.EndpointID, d.unpublish)
}

func (d *Driver) unpublish(ctx context.Context, e *state.Endpoint) error {
	n, err := d.networkOf(e)
	if err != nil {
		return err
	}
	return d.del(ctx, n, e, ports)
}

// portTries is how often the driver chooses ports again, because another program may have taken
// a port that looked free.
const portTries = 16

// addPorts chooses ports and publishes them.
func (d *Driver) addPorts(ctx context.Context, n *network, e *state.Endpoint) error {
	if e.Ports == state.Doing {
		if err := d.del(ctx, n, e, ports); err != nil {
			return err
		}
	}
	list := n.part(ports)
	if len(list.Plugins) == 0 {
		return fmt.Errorf("-p: no plugin of network %s publishes ports, and option %s is off", n.list.Name, optPortmap)
	}
	if err := checkFamilies(e.Asked, n.list.Name, e.Kernel.Addrs); err != nil {
		return err
	}
	d.freePorts(ctx, e)
	var failed error
	for try := range portTries {
		again, err := d.tryPorts(ctx, n, e, list, try)
		if err == nil {
			d.opts.Log("endpoint %.12s: published %.1000s", e.ID, portList(e.Published))
			return nil
		}
		if !again {
			return errors.Join(err, failed)
		}
		failed = err
	}
	return failed
}

// tryPorts chooses ports and publishes them once. If it fails, it undoes everything. If another
// choice may succeed, again is true.
func (d *Driver) tryPorts(ctx context.Context, n *network, e *state.Endpoint, list *chain.List, try int) (again bool, err error) {
	chosen, err := d.choosePorts(ctx, e, try)
	if err != nil {
		return false, err
	}
	if err = d.publish(ctx, n, e, list); err == nil {
		e.Ports = state.Done
		return false, d.save(e)
	}
	if undone := d.del(ctx, n, e, ports); undone != nil {
		return false, errors.Join(err, undone)
	}
	return chosen && ctx.Err() == nil, err
}

// portsAt returns the namespace and the interface to which the ports lead.
func (d *Driver) portsAt(e *state.Endpoint) state.Where {
	if e.PostAt.NetNS != "" && e.PostAt.NetNS != e.Hold {
		return e.PostAt
	}
	return state.Where{NetNS: e.Hold, IfName: holdName}
}

// choosePorts chooses the ports to publish, and records them. If another try would choose the
// same ports, chosen is false. Two endpoints that choose at the same time must see each other's
// choice. So choosePorts holds a lock that all endpoints share; it is the only such lock. It
// holds the lock for some milliseconds, until the choice is on the disk, and never while a plugin
// runs.
func (d *Driver) choosePorts(ctx context.Context, e *state.Endpoint, try int) (chosen bool, err error) {
	release, err := d.locks.lock(ctx, "ports")
	if err != nil {
		return false, err
	}
	defer release()
	all, err := d.state.Endpoints.List()
	if err != nil {
		d.opts.Log("choose ports: %v", err) // ports of an endpoint that cannot be read do not matter here
	}
	used := new(usedPorts)
	for _, other := range all {
		if other.ID != e.ID && !apart(other, e) {
			used.add(other.Published, publisher(other))
		}
	}
	if e.Published, err = choose(e.Asked, used, try); err != nil {
		return false, err
	}
	e.Ports, e.PortsAt = state.Doing, d.portsAt(e)
	return slices.ContainsFunc(e.Published, func(p state.Port) bool { return p.Chosen }), d.save(e)
}

func (d *Driver) publish(ctx context.Context, n *network, e *state.Endpoint, list *chain.List) (err error) {
	a := d.attachment(e, e.PortsAt)
	a.Capabilities[portMappings] = mappings(e.Published)
	if a.Prev, err = d.result(n, e, e.PortsAt); err != nil {
		return err
	}
	_, err = d.run[ports].Add(ctx, list, a)
	return err
}

func mappings(list []state.Port) (out []spec.PortMapping) {
	for _, p := range list {
		out = append(out, spec.PortMapping{HostPort: p.HostPort, ContainerPort: p.Port, Protocol: nft.ProtocolName(p.Proto), HostIP: p.HostIP})
	}
	return out
}

// lostPorts reports whether a container runs without its published ports. Docker asks for them
// only once. So if the driver was killed during that call, they are missing.
func (d *Driver) lostPorts(f *evidence, e *state.Endpoint) bool {
	return len(e.Asked) > 0 && e.Ports != state.Done && e.Phase == state.Joined && f.here(e) &&
		finished(e) && !shut(e) && d.runs(f, e)
}

// republish publishes or removes the ports as Docker last wanted. The sandbox's routes show what
// Docker wanted: Docker moves the default gateway first, and then the ports.
func (d *Driver) republish(ctx context.Context, e *state.Endpoint) error {
	n, err := d.networkOf(e)
	if err != nil || n.Internal {
		return err
	}
	switch is, err := d.isGateway(e); {
	case err != nil:
		return err
	case is:
		return d.addPorts(ctx, n, e)
	}
	return d.del(ctx, n, e, ports)
}

// freePorts takes the ports that an endpoint wants from endpoints that must not keep them. These
// are dead endpoints, and the endpoint that was the same container's gateway before.
func (d *Driver) freePorts(ctx context.Context, e *state.Endpoint) {
	all, err := d.state.Endpoints.List()
	if err != nil {
		d.opts.Log("free ports: %v", err)
	}
	for _, other := range all {
		switch {
		case other.ID == e.ID || !clash(e.Asked, other.Published):
		case other.Sandbox == e.Sandbox:
			if err := d.handOver(ctx, other.ID); err != nil {
				d.opts.Log("endpoint %.12s: unpublish its ports: %v", other.ID, err)
			}
		default:
			d.evict(ctx, other.ID, false)
		}
	}
}

// clash reports whether a fixed port that was asked for is already published. It ignores ranges,
// because choose can take another port from a range.
func clash(asked []cnm.PortBinding, published []state.Port) bool {
	return slices.ContainsFunc(asked, func(b cnm.PortBinding) bool {
		ip, _ := netip.ParseAddr(b.HostIP) // choose reports an invalid address
		return b.HostPort > 0 && b.HostPortEnd <= b.HostPort && slices.ContainsFunc(published, func(p state.Port) bool {
			return p.Proto == b.Proto && p.HostPort == b.HostPort && overlap(p.HostIP, ip)
		})
	})
}

// handOver removes the published ports of an endpoint that is no longer its container's gateway.
// After a restart with live-restore, Docker does not revoke these ports itself.
func (d *Driver) handOver(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, evictTime)
	defer cancel()
	return d.enter(ctx, id, func(ctx context.Context, e *state.Endpoint) error {
		if is, err := d.isGateway(e); is || err != nil {
			return err
		}
		return d.unpublish(ctx, e)
	})
}

// isGateway reports whether a default route of the sandbox uses the endpoint's link.
func (d *Driver) isGateway(e *state.Endpoint) (bool, error) {
	c, link, err := d.sandboxLink(e)
	if nl.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer c.Close()
	v4, err := leads(c, link.Attrs().Index, false)
	v6, err6 := leads(c, link.Attrs().Index, true)
	return v4 || v6, errors.Join(err, err6)
}

// apart reports whether two endpoints of one container have addresses of different families. Then
// one may be the container's gateway for IPv4 and the other one for IPv6, and each publishes the
// same ports.
func apart(a, b *state.Endpoint) bool {
	if a.Sandbox != b.Sandbox || a.Kernel == nil || b.Kernel == nil {
		return false
	}
	a4, a6 := addresses(a.Kernel)
	b4, b6 := addresses(b.Kernel)
	return !(a4.IsValid() && b4.IsValid()) && !(a6.IsValid() && b6.IsValid())
}
