// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// These are the protocol numbers of agents' routes (rtm_protocol): to the networks of `patchbayd hosts`, and
// to a Kubernetes cluster's pods. They are free in /etc/iproute2/rt_protos.
const (
	HostsProtocol = 112
	PodsProtocol  = 113
)

// Unreachable is a route of the host that refuses packets to a prefix, except where a longer prefix has a
// route. It is the route that an agent makes, keeps and removes: an ADD only makes it before the agent
// runs, so an ADD that fails and a DEL leave it, and CHECK does not ask for it.
type Unreachable struct {
	Dst      netip.Prefix
	Protocol uint8 // the agent's
}

// String returns the ip command.
func (u Unreachable) String() string {
	return fmt.Sprintf("host: ip route add unreachable %s proto %d # unless there is a route", u.Dst, u.Protocol)
}

// Ensure adds the route. A kernel without IPv6 sends no packets there.
func (u Unreachable) Ensure(_ context.Context, env *Env) (Undo, error) {
	err := env.Host.RefuseRoute(u.Dst, u.Protocol)
	if errors.Is(err, unix.EEXIST) || u.Dst.Addr().Is6() && (errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP)) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("refuse packets to %s that no other route takes: %w", u.Dst, err)
	}
	return nil, nil
}

// Diff returns "".
func (u Unreachable) Diff(context.Context, *Env) (string, error) { return "", nil }
