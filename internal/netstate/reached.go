// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
)

// Reached expects, for CHECK, that the host reaches a container's address through the link
// that has its gateway. The route that came with the gateway's address may be gone, and no
// ADD restores it; another network may have the same subnet, or a route may lead elsewhere.
type Reached struct {
	Link    string
	Addr    netip.Addr
	Gateway netip.Prefix // the address whose route leads to the container
}

// String names the expected route.
func (w Reached) String() string { return fmt.Sprintf("host: reach %s by %s", w.Addr, w.Link) }

// Ensure does nothing: routes come with the addresses of the host.
func (Reached) Ensure(context.Context, *Env) (Undo, error) { return nil, nil }

// Diff finds no route, or another link than the expected one. Other objects report a link
// that is down or without the address, and a link in a VRF has its own routes.
func (w Reached) Diff(_ context.Context, env *Env) (string, error) {
	link, err := env.Link(Host, w.Link)
	if err != nil || link.Attrs().MasterIndex != 0 || link.Attrs().RawFlags&unix.IFF_UP == 0 {
		return "", nil //nolint:nilerr // an earlier object reports it
	}
	if d := withoutARP(link); d != "" {
		return d, nil
	}
	if has, err := hasAddr(env.Host, link, w.Gateway); err != nil || !has {
		return "", err
	}
	routes, err := env.Host.RouteGetWithOptions(w.Addr.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	switch {
	case errors.Is(err, unix.ENETUNREACH), nl.IsNotFound(err):
		return w.lost(), nil
	case err != nil || len(routes) == 0 || routes[0].LinkIndex == link.Attrs().Index || routes[0].LinkIndex == 0:
		return "", nil //nolint:nilerr // several links, or a rule that refuses it: nothing to name
	case nl.PrefixOf(routes[0].Dst).Bits() <= 0: // the default route, with or without a destination
		return w.lost(), nil
	}
	other, err := env.Host.LinkAt(routes[0].LinkIndex)
	if nl.IsNotFound(err) { // it has just been deleted
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("the host reaches %s by %s instead of %s", w.Addr, other.Attrs().Name, w.Link), nil
}

// withoutARP reports an Ethernet link that finds no neighbours.
func withoutARP(link netlink.Link) string {
	at := link.Attrs()
	if at.RawFlags&unix.IFF_NOARP == 0 || !slices.Contains([]string{"bridge", "veth", "macvlan"}, link.Type()) {
		return ""
	}
	return fmt.Sprintf("ARP is off on %s, so neither end finds the other (ip link set %s arp on)", at.Name, at.Name)
}

func (w Reached) lost() string {
	return fmt.Sprintf("the host has no route to %s by %s, which no ADD restores (ip route add %s dev %s src %s)",
		w.Addr, w.Link, w.Gateway.Masked(), w.Link, w.Gateway.Addr())
}
