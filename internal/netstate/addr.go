// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/prefix"
)

// Addr is an address of a link.
type Addr struct {
	Where  Where
	Link   string
	Prefix netip.Prefix

	// DAD makes the kernel check whether another host uses the IPv6 address (duplicate address
	// detection). This takes 1-2 s, and until then no program can use the address. An address from
	// IPAM does not need the check.
	DAD bool
	// NoRoute stops the kernel from adding a route to the address's subnet.
	NoRoute bool
}

// String returns the ip command that adds the address.
func (a Addr) String() string {
	s := fmt.Sprintf("%s: ip addr add %s dev %s", a.Where, a.Prefix, a.Link)
	if a.flags()&unix.IFA_F_NODAD != 0 {
		s += " nodad"
	}
	if a.NoRoute {
		s += " noprefixroute"
	}
	return s
}

func (a Addr) flags() (flags int) {
	if a.Prefix.Addr().Is6() && !a.DAD {
		flags |= unix.IFA_F_NODAD
	}
	if a.NoRoute {
		flags |= unix.IFA_F_NOPREFIXROUTE
	}
	return flags
}

// Ensure adds the address. Ensure fails if the link has the address already.
func (a Addr) Ensure(ctx context.Context, env *Env) (Undo, error) {
	link, err := env.Link(a.Where, a.Link)
	if err != nil {
		return nil, err
	}
	conn := env.Conn(a.Where)
	add := func() error { return conn.AddAddr(link.Attrs().Index, a.Prefix, a.flags()) }
	if err := untilEnded(ctx, unix.EADDRINUSE, add); err != nil {
		return nil, fmt.Errorf("failed to add IP addr %v to %q: %w", a.Prefix, a.Link, err)
	}
	return func(context.Context) error { return deleteAddr(conn, link, a.Prefix) }, nil
}

func deleteAddr(conn *nl.Conn, link netlink.Link, p netip.Prefix) error {
	if err := conn.AddrDel(link, &netlink.Addr{IPNet: nl.IPNet(p)}); err != nil && !nl.IsNotFound(err) {
		return fmt.Errorf("could not remove IP address from %q: %w", link.Attrs().Name, err)
	}
	return nil
}

// Diff reports whether the address is missing. Unless NoRoute is set, it also reports whether the
// route to the address's subnet is missing.
func (a Addr) Diff(_ context.Context, env *Env) (string, error) {
	link, err := env.Link(a.Where, a.Link)
	if err != nil {
		return diffMissing(err)
	}
	found, err := hasAddr(env.Conn(a.Where), link, a.Prefix)
	switch {
	case err != nil:
		return "", err
	case !found:
		return fmt.Sprintf("Failed to match addr %v on interface %v", a.Prefix, a.Link), nil
	case a.NoRoute || a.Prefix.IsSingleIP():
		return "", nil
	}
	return Route{Where: a.Where, Link: a.Link, Dst: a.Prefix.Masked()}.Diff(context.Background(), env)
}

func hasAddr(conn *nl.Conn, link netlink.Link, want netip.Prefix) (bool, error) {
	addrs, err := conn.Addrs(link.Attrs().Index)
	for _, a := range addrs {
		if a.Prefix == want {
			return true, nil
		}
	}
	return false, err
}

// Gateway is the address of a network on the host. Other attachments use it too. So it stays when
// the ADD fails, and when the last container is removed.
type Gateway struct {
	Link   string
	Prefix netip.Prefix
	Force  bool // replace any other IPv4 address, and IPv6 addresses of the subnet
	DAD    bool

	// Subnet is the containers' subnet behind a link-local address, to which no route comes with the address.
	Subnet netip.Prefix
}

// String returns the ip command that adds the address.
func (g Gateway) String() string {
	s := g.addr().String()
	if g.Force {
		s += " (in place of others)"
	}
	if g.Subnet.IsValid() {
		s += "; " + strings.TrimPrefix(g.route().String(), "host: ")
	}
	return s
}

func (g Gateway) route() Route { return Route{Where: Host, Link: g.Link, Dst: g.Subnet} }

func (g Gateway) addr() Addr { return Addr{Where: Host, Link: g.Link, Prefix: g.Prefix, DAD: g.DAD} }

// Ensure adds the address if it is missing. The address nearly always exists.
func (g Gateway) Ensure(_ context.Context, env *Env) (Undo, error) {
	link, err := env.Link(Host, g.Link)
	if err != nil {
		return nil, err
	}
	addrs, err := env.Host.Addrs(link.Attrs().Index)
	if err != nil {
		return nil, fmt.Errorf("could not get list of IP addresses: %w", err)
	}
	others, ok := g.Others(addrs)
	switch {
	case ok:
		return nil, g.reach(env, link)
	case len(others) > 0 && !g.Force:
		return nil, fmt.Errorf("%q already has an IP address different from %v", g.Link, g.Prefix)
	}
	for _, o := range others {
		if err := deleteAddr(env.Host, link, o); err != nil {
			return nil, err
		}
	}
	if err := g.add(env, link); err != nil {
		return nil, err
	}
	return nil, g.reach(env, link)
}

// reach adds the route to the containers if the address brings none. Like the address, it stays.
func (g Gateway) reach(env *Env, link netlink.Link) error {
	if !g.Subnet.IsValid() {
		return nil
	}
	there, err := g.route().lookup(env.Host, link)
	if err != nil || there {
		return err
	}
	if err := env.Host.AddRoute(g.route().message(link.Attrs().Index)); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add route to %s by %s: %w", g.Subnet, g.Link, err)
	}
	return nil
}

// Others reports whether the link has the address (ok). If it does not, Others returns the
// addresses that conflict with it: every IPv4 address, and every IPv6 address of an overlapping
// subnet.
func (g Gateway) Others(have []nl.Addr) (others []netip.Prefix, ok bool) {
	for _, a := range have {
		switch {
		case a.Prefix == g.Prefix:
			return nil, true
		case a.Prefix.Addr().Is4() != g.Prefix.Addr().Is4():
		case prefix.IsLinkLocal(a.Prefix.Addr()): // the kernel gives each link one of its own
		case a.Prefix.Addr().Is4() || a.Prefix.Overlaps(g.Prefix):
			others = append(others, a.Prefix)
		}
	}
	return others, false
}

// add adds the address and fixes the bridge's MAC. Until now the bridge took its MAC from its
// ports. As a gateway it must keep its MAC when ports come and go. add fixes the MAC that the
// bridge had before our port joined.
func (g Gateway) add(env *Env, link netlink.Link) error {
	if err := setMAC(env, link, link.Attrs().HardwareAddr); err != nil {
		return err
	}
	err := env.Host.AddAddr(link.Attrs().Index, g.Prefix, g.addr().flags())
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("could not add IP address %s to %q: %w", g.Prefix, g.Link, err)
	}
	env.Forget(Host, g.Link) // the link's MTU may have changed when a port joined
	return nil
}

// Diff reports whether the address is missing.
func (g Gateway) Diff(_ context.Context, env *Env) (string, error) {
	link, err := env.Link(Host, g.Link)
	if err != nil {
		return diffMissing(err)
	}
	found, err := hasAddr(env.Host, link, g.Prefix)
	switch {
	case err != nil:
		return "", err
	case !found:
		return fmt.Sprintf("Failed to match addr %v on interface %v", g.Prefix, g.Link), nil
	case !g.Subnet.IsValid():
		return "", nil
	}
	return g.route().Diff(context.Background(), env)
}
