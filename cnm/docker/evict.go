// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/patchbay-net/patchbay/cnm"
	"github.com/patchbay-net/patchbay/cnm/docker/state"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/sleep"
)

// evictTime bounds the wait for an endpoint that is in the way of another: for its
// sandbox to come, and what its removal takes. Two that wait for each other are
// both told so.
const evictTime = awaitTime + 5*time.Second

// evict removes an endpoint that is in the way when it is dead, and says whether
// it is gone. A dockerd that was killed starts its containers as soon as it is
// back, with the ports and addresses that they had, and Sweep may be a minute
// away. Age is no reason here, but for one whose sandbox never came: the start was
// killed before it, or is about to come that far, which is waited for.
func (d *Driver) evict(ctx context.Context, id string, keepLease bool) (gone bool) {
	ctx, cancel := context.WithTimeout(ctx, evictTime)
	defer cancel()
	for {
		if err := d.sweepOne(ctx, &sweep{grace: math.MaxInt64, wanted: true, keepLease: keepLease}, id); err != nil {
			d.opts.Log("endpoint %.12s is in the way: %v", id, err)
		}
		e, err := d.store.Endpoint(id)
		if err != nil {
			return errors.Is(err, state.ErrUnknown)
		}
		if !toCome(e) || !sleep.For(ctx, awaitEvery) {
			return false
		}
	}
}

// makeWay takes the ports that an endpoint wants from those that have them no
// more: dead ones, and the one of the container that was its gateway before.
func (d *Driver) makeWay(ctx context.Context, e *state.Endpoint) {
	all, err := d.store.Endpoints()
	if err != nil {
		d.opts.Log("make way for ports: %v", err)
	}
	for _, other := range all {
		switch {
		case other.ID == e.ID || !clash(e.Asked, other.Published):
		case other.Sandbox == e.Sandbox:
			if err := d.handOver(ctx, other.ID); err != nil {
				d.opts.Log("endpoint %.12s: take its ports: %v", other.ID, err)
			}
		default:
			d.evict(ctx, other.ID, false)
		}
	}
}

// clash says whether a port that is asked for by its number is published. Of a
// range there is another.
func clash(asked []cnm.PortBinding, published []state.Port) bool {
	return slices.ContainsFunc(asked, func(b cnm.PortBinding) bool {
		ip, _ := netip.ParseAddr(b.HostIP) // choose tells what is wrong
		return b.HostPort > 0 && b.HostPortEnd <= b.HostPort && slices.ContainsFunc(published, func(p state.Port) bool {
			return p.Proto == b.Proto && p.HostPort == b.HostPort && overlap(p.HostIP, ip)
		})
	})
}

// handOver takes the ports of an endpoint off that is its container's gateway no
// more: after a restart with live-restore Docker sends no Revoke.
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

// isGateway says whether a default route of the sandbox is the endpoint's.
func (d *Driver) isGateway(e *state.Endpoint) (bool, error) {
	c, link, err := d.sandboxLink(e)
	if nl.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer c.Close()
	s, err := snapshot(c, link)
	if err != nil {
		return false, err
	}
	return hasDefault(s, false) || hasDefault(s, true), nil
}

// freeAddress makes sure that no other endpoint has the MAC address of a lease to
// be, and takes the address that is wanted from one that is dead.
func (d *Driver) freeAddress(ctx context.Context, network, id string, wanted netip.Addr) error {
	l, err := d.store.Lease(id)
	switch {
	case errors.Is(err, state.ErrUnknown):
	case err != nil:
		return err
	case l.Endpoint != "" && !d.evict(ctx, l.Endpoint, true):
		return takenBy(l)
	}
	if !wanted.IsValid() {
		return nil
	}
	all, err := d.store.Leases()
	for _, l := range all {
		if l.ID != id && l.Network == network && l.Endpoint != "" && slices.Contains(l.Given, wanted) {
			d.evict(ctx, l.Endpoint, false)
		}
	}
	return err
}

func takenBy(l *state.Lease) error {
	return fmt.Errorf("the MAC address is that of endpoint %.12s in network %s: choose another --mac-address", l.Endpoint, l.Network)
}

// apart says whether two endpoints of one container are of different families: one
// may be its gateway for IPv4 and the other for IPv6, each with the same ports.
func apart(a, b *state.Endpoint) bool {
	if a.Sandbox != b.Sandbox || a.Kernel == nil || b.Kernel == nil {
		return false
	}
	a4, a6 := addresses(a.Kernel)
	b4, b6 := addresses(b.Kernel)
	return !(a4.IsValid() && b4.IsValid()) && !(a6.IsValid() && b6.IsValid())
}
