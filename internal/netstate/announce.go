// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/patchbay-net/patchbay/internal/nl"
)

// Announce makes the kernel send gratuitous ARP and neighbour advertisements for the
// addresses of a link in the sandbox (with arp_notify, ndisc_notify). The kernel does so by
// itself when the link goes up, but before the bridge's port forwards, so no neighbour
// receives it. Setting the Ethernet address to the same value repeats it.
//
// A broadcast goes to every port, 2 us each. With Gateway, the host's link that containers
// send to, Ensure announces only if the host has a neighbour entry for one of the
// addresses, which shows that another container had it not long ago.
type Announce struct {
	Link    string
	Gateway string // "": always
	Addrs   []netip.Addr
}

// String is the ip command.
func (a Announce) String() string {
	s := fmt.Sprintf("sandbox: ip link set %s address SAME (announces its addresses)", a.Link)
	if a.Gateway != "" {
		s += fmt.Sprintf(" if ip neigh get ADDRESS dev %s", a.Gateway)
	}
	return s
}

// Ensure announces; nothing changes.
func (a Announce) Ensure(_ context.Context, env *Env) (Undo, error) {
	needed, err := a.needed(env)
	if err != nil || !needed {
		return nil, err
	}
	link, err := env.Link(Sandbox, a.Link)
	if err != nil {
		return nil, err
	}
	if err := env.Sandbox.LinkSetHardwareAddr(link, link.Attrs().HardwareAddr); err != nil {
		return nil, fmt.Errorf("announce addresses of %s: %w", a.Link, err)
	}
	return nil, nil
}

func (a Announce) needed(env *Env) (bool, error) {
	if a.Gateway == "" {
		return true, nil
	}
	gateway, err := env.Link(Host, a.Gateway)
	if err != nil {
		return false, err
	}
	for _, addr := range a.Addrs {
		known, err := env.Host.HasNeighbour(gateway.Attrs().Index, addr)
		if err != nil && !nl.IsNotFound(err) {
			return true, nil // the kernel cannot answer: < 5.0
		}
		if known {
			return true, nil
		}
	}
	return false, nil
}

// Diff finds nothing.
func (a Announce) Diff(context.Context, *Env) (string, error) { return "", nil }
