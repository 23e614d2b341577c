// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
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
	if u.Dst.Addr().Is6() && (errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP)) {
		return nil, nil
	}
	if err == nil || errors.Is(err, unix.EEXIST) {
		err = u.first(env.Host)
	}
	if err != nil {
		return nil, fmt.Errorf("refuse packets to %s that no other route takes: %w", u.Dst, err)
	}
	return nil, nil
}

// first returns an error if another program's route to exactly this prefix comes before ours: it would take the packets,
// unencrypted. Like the agent (mesh.ErrForeignRoute), an ADD never replaces such a route. The agent's own may lead to
// a host that has the whole network.
func (u Unreachable) first(host *nl.Conn) error {
	routes, err := host.RoutesAt(u.Dst)
	if err != nil || len(routes) == 0 || routes[0].Type != unix.RTN_UNICAST || routes[0].Protocol == u.Protocol {
		return err
	}
	where := ""
	if link, err := host.LinkAt(routes[0].Link); err == nil {
		where = " dev " + link.Attrs().Name
	}
	return fmt.Errorf("another program's route takes them, %[1]s%[2]s proto %[3]d: remove it (ip route del %[1]s%[2]s) or give the network another subnet", u.Dst, where, routes[0].Protocol)
}

// Diff returns "".
func (u Unreachable) Diff(context.Context, *Env) (string, error) { return "", nil }
