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
	vnetns "github.com/vishvananda/netns"

	"github.com/patchbay-net/patchbay/internal/nl"
)

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
	var words []string
	for _, addr := range a.Addrs {
		words = append(words, addr.String())
	}
	return fmt.Sprintf("sandbox: announce %s on %s (gratuitous ARP, neighbour advertisement)", strings.Join(words, " "), a.Link)
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
	ctx, cancel := context.WithTimeout(ctx, announceTime)
	defer cancel()
	events, done := make(chan netlink.LinkUpdate), make(chan struct{})
	ns := vnetns.NsHandle(conn.NS.Fd())
	if err := netlink.LinkSubscribeWithOptions(events, done, netlink.LinkSubscribeOptions{Namespace: &ns}); err != nil {
		return fmt.Errorf("listen for link events: %w", err)
	}
	defer unsubscribe(events, done)
	up, err := until(ctx, events, func() (bool, error) {
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
