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

// Announce tells neighbours the addresses of a link in the sandbox. Announce makes the kernel
// send gratuitous ARP and neighbour advertisements (arp_notify, ndisc_notify). The kernel sends
// them by itself when the link goes up. But at that time the bridge's port does not forward yet,
// so no neighbour receives them. So Announce sets the link's Ethernet address to its current
// value, and the kernel sends them again.
//
// A broadcast costs 2 µs for each port of the bridge, so Ensure avoids it if it can. Gateway, if
// set, is the host's link to which containers send. Ensure then announces only if the host has a
// neighbour entry for one of the addresses. Such an entry shows that another container had the
// address recently.
type Announce struct {
	Link    string
	Gateway string // "" means: announce always
	Addrs   []netip.Addr
}

// String returns the ip command that announces.
func (a Announce) String() string {
	s := fmt.Sprintf("sandbox: ip link set %s address SAME (announces its addresses)", a.Link)
	if a.Gateway != "" {
		s += fmt.Sprintf(" if ip neigh get ADDRESS dev %s", a.Gateway)
	}
	return s
}

// Ensure announces the addresses. Ensure has nothing to undo.
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
			return true, nil // kernels before 5.0 cannot answer
		}
		if known {
			return true, nil
		}
	}
	return false, nil
}

// Diff always reports no difference.
func (a Announce) Diff(context.Context, *Env) (string, error) { return "", nil }

// announceTime is how long an announcement waits for the carrier of a link that is up. Linux
// before 6.8 reports the carrier about 0.1 ms late. The limit is short, because an unplugged
// cable must not delay the ADD.
const announceTime = 100 * time.Millisecond

// Advertise announces the addresses of a sandbox's link on a shared segment. Advertise sends
// more than the kernel does with arp_notify and ndisc_notify (see nl.Conn.Announce). A failure
// is only a warning.
type Advertise struct {
	Link  string
	Addrs []netip.Addr
}

// String says what Ensure sends.
func (a Advertise) String() string {
	return fmt.Sprintf("sandbox: announce %s on %s (gratuitous ARP, neighbour advertisement)", spaced(a.Addrs), a.Link)
}

// Ensure waits for the carrier and announces the addresses. Ensure has nothing to undo.
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

// wait returns when the link can send frames. If the link cannot do so in time, wait returns an
// error.
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

// Diff always reports no difference.
func (a Advertise) Diff(context.Context, *Env) (string, error) { return "", nil }

// spaced joins addresses with spaces.
func spaced(addrs []netip.Addr) string { return strings.Trim(fmt.Sprint(addrs), "[]") }
