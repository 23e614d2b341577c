// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package tuning

import (
	"context"
	"errors"
	"fmt"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
)

// peerMTU checks that the host's end of a veth pair takes packets as large as the container's end sends. The kernel
// drops larger ones without a word, so a connection hangs as soon as much is sent. The reference changes one end
// only, and so do we, because the host's end may be a port of a bridge that others share: an ADD warns, and CHECK
// fails.
type peerMTU struct {
	ifName string
	mtu    int
}

func (p peerMTU) String() string {
	return fmt.Sprintf("sandbox: compare mtu %d of %s with the host's end", p.mtu, p.ifName)
}

// Ensure warns, because the pair works for packets that are small enough.
func (p peerMTU) Ensure(ctx context.Context, env *netstate.Env) (netstate.Undo, error) {
	d, err := p.Diff(ctx, env)
	if err != nil || d != "" {
		env.Warn(errors.Join(err, text(d)))
	}
	return nil, nil
}

func text(d string) error {
	if d == "" {
		return nil
	}
	return errors.New(d)
}

// Diff reports that the host's end takes only smaller packets.
func (p peerMTU) Diff(_ context.Context, env *netstate.Env) (string, error) {
	link, err := env.Sandbox.Link(p.ifName)
	if nl.IsNotFound(err) {
		return "", nil // an attribute reports it
	}
	if err != nil || link.Type() != "veth" {
		return "", err
	}
	end, err := env.Host.LinkAt(link.Attrs().ParentIndex)
	if nl.IsNotFound(err) {
		return "", nil // it is in another namespace
	}
	if err != nil {
		return "", err
	}
	at := end.Attrs()
	if end.Type() != "veth" || at.ParentIndex != link.Attrs().Index || at.MTU >= p.mtu {
		return "", nil
	}
	return fmt.Sprintf("%s has mtu %d, but the host's end of its pair, %s, has %d: larger packets are lost (set mtu in the plugin that makes the pair)",
		p.ifName, p.mtu, at.Name, at.MTU), nil
}
