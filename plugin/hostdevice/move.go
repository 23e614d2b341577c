// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/record"
)

// move is the object: a device of the host in the container.
type move struct {
	device *record.Device
	ifName string
	netns  string // path, for people
	mac    net.HardwareAddr
}

// String is the ip commands.
func (m move) String() string {
	return fmt.Sprintf("host: ip link set %s alias %[1]s; ip link set %[1]s netns %s name %s", m.device.Name, m.netns, m.ifName)
}

// Ensure sets the device's name as its alias, as the reference does, and then moves it. The
// kernel moves and renames under one lock, so udev and others see it disappear and not
// change its name.
func (m move) Ensure(ctx context.Context, env *netstate.Env) (netstate.Undo, error) {
	t := trip{Device: m.device, ifName: m.ifName, sandbox: env.Sandbox, host: env.Host}
	undo := func(ctx context.Context) error {
		env.Forget(netstate.Sandbox, m.ifName)
		env.Forget(netstate.Host, m.device.Name)
		return t.home(ctx)
	}
	if err := m.move(env); err != nil {
		return nil, errors.Join(fmt.Errorf("failed to move link %w", err), undo(ctx))
	}
	return undo, nil
}

func (m move) move(env *netstate.Env) error {
	d := m.device
	if err := env.Host.SetLink(d.Index, nl.LinkChange{Alias: &d.Name}); err != nil {
		return fmt.Errorf("failed to set alias to %q: %w", d.Name, err)
	}
	if err := env.Host.SetLink(d.Index, nl.LinkChange{NetNS: env.Sandbox.NS.Fd(), Name: m.ifName}); err != nil {
		return fmt.Errorf("failed to move %q (host: %q) to container NS: %w", m.ifName, d.Name, err)
	}
	env.Forget(netstate.Host, d.Name)
	if _, err := env.Link(netstate.Sandbox, m.ifName); err != nil {
		return fmt.Errorf("failed to find %q in container NS: %w", m.ifName, err)
	}
	return nil
}

// Diff expects the moved device, with the MAC of the previous result.
func (m move) Diff(_ context.Context, env *netstate.Env) (string, error) {
	link, err := env.Link(netstate.Sandbox, m.ifName)
	switch {
	case nl.IsNotFound(err):
		return fmt.Sprintf("Container Interface name in prevResult: %s not found", m.ifName), nil
	case err != nil:
		return "", err
	case len(m.mac) > 0 && !bytes.Equal(link.Attrs().HardwareAddr, m.mac):
		return fmt.Sprintf("Interface %s Mac %s doesn't match container Mac: %s", m.ifName, m.mac, link.Attrs().HardwareAddr), nil
	case m.device != nil && !is(m.device, link, m.ifName):
		return fmt.Sprintf("Interface %s is not device %s of the host", m.ifName, m.device.Name), nil
	}
	return "", nil
}
