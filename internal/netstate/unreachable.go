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

// PodsProtocol is the protocol number of the routes of a Kubernetes node's pods (rtm_protocol). It is free
// in /etc/iproute2/rt_protos.
const PodsProtocol = 113

// Unreachable is a route of the host that refuses packets to a prefix, except where a longer prefix has a
// route. It is the route that the agent of the node makes, keeps and removes: an ADD only makes it before
// the agent runs, so an ADD that fails and a DEL leave it, and CHECK does not ask for it.
type Unreachable struct{ Dst netip.Prefix }

// String returns the ip command.
func (u Unreachable) String() string {
	return fmt.Sprintf("host: ip route add unreachable %s proto %d # unless there is a route", u.Dst, PodsProtocol)
}

// Ensure adds the route. A kernel without IPv6 sends no packets there.
func (u Unreachable) Ensure(_ context.Context, env *Env) (Undo, error) {
	err := env.Host.RefuseRoute(u.Dst, PodsProtocol)
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
