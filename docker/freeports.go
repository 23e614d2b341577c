// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/cnm"
	"github.com/patchbay-net/patchbay/docker/state"
	"github.com/patchbay-net/patchbay/internal/nl"
)

// freePorts frees the ports that an endpoint wants from endpoints that may not keep them:
// dead ones, and the previous gateway of the same container.
func (d *Driver) freePorts(ctx context.Context, e *state.Endpoint) {
	all, err := d.store.Endpoints.List()
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

// clash says whether a port that is requested by its number is published. A range has
// other ports.
func clash(asked []cnm.PortBinding, published []state.Port) bool {
	return slices.ContainsFunc(asked, func(b cnm.PortBinding) bool {
		ip, _ := netip.ParseAddr(b.HostIP) // choose reports an invalid address
		return b.HostPort > 0 && b.HostPortEnd <= b.HostPort && slices.ContainsFunc(published, func(p state.Port) bool {
			return p.Proto == b.Proto && p.HostPort == b.HostPort && overlap(p.HostIP, ip)
		})
	})
}

// handOver unpublishes the ports of an endpoint that is no longer its container's
// gateway: after a restart with live-restore Docker sends no Revoke.
func (d *Driver) handOver(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, evictTime)
	defer cancel()
	e, release, err := d.enter(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	if is, err := d.isGateway(e); is || err != nil {
		return err
	}
	n, err := d.network(e.Network)
	if err != nil {
		return err
	}
	return d.delPorts(ctx, n, e)
}

// isGateway says whether a default route that the sandbox uses is the endpoint's.
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

// apart says whether two endpoints of one container have different families: then one may
// be its gateway for IPv4 and the other for IPv6, each with the same ports.
func apart(a, b *state.Endpoint) bool {
	if a.Sandbox != b.Sandbox || a.Kernel == nil || b.Kernel == nil {
		return false
	}
	a4, a6 := addresses(a.Kernel)
	b4, b6 := addresses(b.Kernel)
	return !(a4.IsValid() && b4.IsValid()) && !(a6.IsValid() && b6.IsValid())
}
