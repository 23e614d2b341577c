// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"context"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// settleTime bounds duplicate address detection, as in the reference.
const settleTime = 5 * time.Second

// Settle waits until no address of a link in the sandbox is tentative. Only addresses with
// DAD ever are.
type Settle struct{ Link string }

// String names what Ensure waits for.
func (s Settle) String() string {
	return "sandbox: wait for duplicate address detection on " + s.Link
}

// Ensure listens for events first, so that none is missed.
func (s Settle) Ensure(ctx context.Context, env *Env) (Undo, error) {
	link, err := env.Link(Sandbox, s.Link)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	events, done := make(chan netlink.AddrUpdate), make(chan struct{})
	ns := vnetns.NsHandle(env.Sandbox.NS.Fd())
	if err := netlink.AddrSubscribeWithOptions(events, done, netlink.AddrSubscribeOptions{Namespace: &ns}); err != nil {
		return nil, fmt.Errorf("listen for address events: %w", err)
	}
	defer unsubscribe(events, done)
	settled, err := until(ctx, events, func() (bool, error) {
		tentative, err := s.tentative(env, link.Attrs().Index)
		return !tentative, err
	})
	if err == nil && !settled {
		err = fmt.Errorf("link %s still has tentative addresses: %w", s.Link, ctx.Err())
	}
	if err != nil {
		return nil, fmt.Errorf("failed to settle addresses for %q: %w", s.Link, err)
	}
	return nil, nil
}

// tentative reports whether detection still runs; a duplicate is an error.
func (s Settle) tentative(env *Env, index int) (yes bool, err error) {
	addrs, err := env.Sandbox.Addrs(index)
	for _, a := range addrs {
		switch {
		case a.Flags&unix.IFA_F_DADFAILED != 0:
			return false, fmt.Errorf("link %s has address %s in DADFAILED state", s.Link, a.Prefix.Addr())
		case a.Flags&unix.IFA_F_TENTATIVE != 0:
			yes = true
		}
	}
	return yes, err
}

// Diff finds nothing: Ensure only waits.
func (s Settle) Diff(context.Context, *Env) (string, error) { return "", nil }
