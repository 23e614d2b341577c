// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// answerTime bounds the wait for a work queue of the kernel. A later answer costs a
// neighbour one second, not the ADD.
const answerTime = time.Second

// Answering waits until the kernel answers for the IPv6 addresses of a link. A work queue
// joins the group that neighbours send to (RFC 4291, solicited-node) some time after the
// address is added, even without duplicate address detection: 0-3 ms on a busy node (Linux
// 6.18). An earlier solicitation is lost, and the neighbour repeats it a second later.
type Answering struct {
	Where Where
	Link  string
	Addrs []netip.Addr // IPv6 only
}

// String names what Ensure waits for.
func (a Answering) String() string {
	var words []string
	for _, addr := range a.Addrs {
		words = append(words, addr.String())
	}
	return fmt.Sprintf("%s: wait until %s answers for %s", a.Where, a.Link, strings.Join(words, " "))
}

// Ensure checks first: mostly there is nothing to wait for.
func (a Answering) Ensure(ctx context.Context, env *Env) (Undo, error) {
	link, err := env.Link(a.Where, a.Link)
	if err != nil {
		return nil, err
	}
	index := link.Attrs().Index
	if link.Attrs().RawFlags&(unix.IFF_NOARP|unix.IFF_LOOPBACK) != 0 {
		return nil, nil // no neighbour asks there
	}
	if yes, err := a.answers(env, index); yes || err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	events, done := make(chan netlink.AddrUpdate), make(chan struct{})
	options := netlink.AddrSubscribeOptions{}
	if a.Where == Sandbox {
		ns := vnetns.NsHandle(env.Sandbox.NS.Fd())
		options.Namespace = &ns
	}
	if err := netlink.AddrSubscribeWithOptions(events, done, options); err != nil {
		return nil, fmt.Errorf("listen for address events: %w", err)
	}
	defer unsubscribe(events, done)
	_, err = until(ctx, events, func() (bool, error) { return a.answers(env, index) })
	return nil, err
}

func (a Answering) answers(env *Env, index int) (bool, error) {
	groups, err := env.Conn(a.Where).Joined(index)
	if err != nil {
		return false, err
	}
	for _, addr := range a.Addrs {
		if !slices.Contains(groups, solicitedNode(addr)) {
			return false, nil
		}
	}
	return true, nil
}

// solicitedNode is ff02::1:ff00:0/104 with the last 24 bits of the address.
func solicitedNode(addr netip.Addr) netip.Addr {
	a := addr.As16()
	group := [16]byte{0: 0xff, 1: 0x02, 11: 1, 12: 0xff}
	copy(group[13:], a[13:])
	return netip.AddrFrom16(group)
}

// Diff finds nothing: Ensure only waits.
func (a Answering) Diff(context.Context, *Env) (string, error) { return "", nil }
