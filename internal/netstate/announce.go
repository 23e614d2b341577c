// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

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

// announceTime is how long an announcement waits until a link that is up has its carrier:
// Linux < 6.8 reports it some 0.1 ms later, and an unplugged cable must not delay the ADD
// further.
const announceTime = 100 * time.Millisecond

// Advertise announces on a shared segment the addresses of a link in the sandbox, beyond
// what the kernel does with arp_notify and ndisc_notify (see nl.Conn.Announce). It is best
// effort: a failure is a warning.
type Advertise struct {
	Link  string
	Addrs []netip.Addr
}

// String names what is sent.
func (a Advertise) String() string {
	return fmt.Sprintf("sandbox: announce %s on %s (gratuitous ARP, neighbour advertisement)", spaced(a.Addrs), a.Link)
}

// Ensure waits for the carrier and announces; nothing changes.
func (a Advertise) Ensure(ctx context.Context, env *Env) (Undo, error) {
	link, err := env.Sandbox.Link(a.Link)
	if err != nil {
		return nil, err
	}
	if !running(link) {
		if err := a.wait(ctx, env.Sandbox, link.Attrs().Index); err != nil {
			env.Warn(err)
			return nil, nil
		}
	}
	if err := env.Sandbox.Announce(link, a.Addrs); err != nil {
		env.Warn(err)
	}
	return nil, nil
}

func running(l netlink.Link) bool { return l.Attrs().Flags&net.FlagRunning != 0 }

// wait returns when the link passes frames, or an error when it does not.
func (a Advertise) wait(ctx context.Context, conn *nl.Conn, index int) error {
	up, err := untilLinks(ctx, conn, announceTime, func() (bool, error) {
		link, err := conn.LinkAt(index)
		return err == nil && running(link), err
	})
	if err == nil && !up {
		err = fmt.Errorf("%s has no carrier: its addresses are not announced", a.Link)
	}
	return err
}

// Diff finds nothing.
func (a Advertise) Diff(context.Context, *Env) (string, error) { return "", nil }

// spaced are addresses with spaces in between.
func spaced(addrs []netip.Addr) string { return strings.Trim(fmt.Sprint(addrs), "[]") }
