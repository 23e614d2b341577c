// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
)

// Tap is a tap device in the sandbox, for a virtual machine.
type Tap struct {
	nl.Tap
	Temp   string // first name, derived from the owner so that DEL finds the tap
	MAC    net.HardwareAddr
	MTU    int       // bytes; 0 means the kernel's default
	Mark   owner.Key // written into the ifalias
	Bridge string    // the tap becomes a port of this bridge of the sandbox; may be empty

	Label string // security label of the process that creates the tap (Env.AddTap), for messages
}

// String returns the ip commands that make the tap.
func (t Tap) String() string {
	s := "sandbox: "
	if t.Label != "" {
		s += "runcon " + t.Label + " "
	}
	s += "ip tuntap add mode tap name " + t.Temp
	if t.MultiQueue {
		s += " multi_queue"
	}
	if t.Owner != nil {
		s += fmt.Sprintf(" user %d", *t.Owner)
	}
	if t.Group != nil {
		s += fmt.Sprintf(" group %d", *t.Group)
	}
	s += fmt.Sprintf("; ip link set %s name %s address %s%s alias %s", t.Temp, t.Name, t.MAC, mtuText(t.MTU), t.Mark.Alias())
	if t.Bridge != "" {
		s += " master " + t.Bridge
	}
	return s
}

func mtuText(mtu int) string {
	if mtu == 0 {
		return ""
	}
	return fmt.Sprintf(" mtu %d", mtu)
}

// Ensure creates the tap with an ioctl on /dev/net/tun and configures it with one message.
func (t Tap) Ensure(ctx context.Context, env *Env) (Undo, error) {
	master, err := t.master(env)
	if err != nil {
		return nil, err
	}
	add := env.AddTap
	if add == nil {
		add = (*nl.Conn).AddTap
	}
	bare := t.Tap
	bare.Name = t.Temp
	if err := add(env.Sandbox, bare); err != nil {
		return nil, errors.Join(fmt.Errorf("failed to create tap: %w", err), t.undo(env)(ctx))
	}
	if err := t.dress(env, master); err != nil {
		return nil, errors.Join(err, t.undo(env)(ctx))
	}
	return t.undo(env), nil
}

// dress configures the tap and sets its name last. So a tap that has its final name is
// complete.
func (t Tap) dress(env *Env, master int) error {
	link, err := env.Sandbox.Link(t.Temp)
	if err != nil {
		return err
	}
	alias, index := t.Mark.Alias(), link.Attrs().Index
	if err := env.Sandbox.SetLink(index, nl.LinkChange{Alias: &alias, MAC: t.MAC, MTU: t.MTU}); err != nil {
		return fmt.Errorf("set address %s%s of tap %s: %w", t.MAC, mtuText(t.MTU), t.Name, err)
	}
	if t.Bridge != "" {
		if err := env.Sandbox.SetLink(index, nl.LinkChange{Master: master}); err != nil {
			return fmt.Errorf("failed to set tap %s as a port of bridge %s: %w", t.Name, t.Bridge, err)
		}
	}
	if err := env.Sandbox.SetLink(index, nl.LinkChange{Name: t.Name}); err != nil {
		return fmt.Errorf("failed to rename tap to %q: %w", t.Name, err)
	}
	return nil
}

func (t Tap) undo(env *Env) Undo {
	return func(context.Context) error {
		env.Forget(Sandbox, t.Name)
		for _, name := range []string{t.Temp, t.Name} {
			link, err := env.Sandbox.Link(name)
			if nl.IsNotFound(err) || err == nil && name == t.Name && link.Attrs().Alias != t.Mark.Alias() {
				continue
			}
			if err != nil {
				return err
			}
			return DeleteLink(env.Sandbox, link)
		}
		return nil
	}
}

func (t Tap) master(env *Env) (index int, err error) {
	if t.Bridge == "" {
		return 0, nil
	}
	link, err := env.Link(Sandbox, t.Bridge)
	if err != nil {
		return 0, fmt.Errorf("failed to get bridge %s: %w", t.Bridge, err)
	}
	return link.Attrs().Index, nil
}

// Diff reports whether the tap is missing. It also reports another MAC than in the previous
// result, and other owners, queues or bridges.
func (t Tap) Diff(_ context.Context, env *Env) (string, error) {
	link, d, err := findInside(env, t.Name, t.MAC)
	if err != nil || d != "" {
		return d, err
	}
	tap, ok := link.(*netlink.Tuntap)
	if !ok || tap.Mode != netlink.TUNTAP_MODE_TAP {
		return fmt.Sprintf("Error: Container interface %s not of type tap", t.Name), nil
	}
	master, err := t.master(env)
	if err != nil {
		return err.Error(), nil //nolint:nilerr // a missing bridge is the difference
	}
	switch {
	case t.Owner != nil && tap.Owner != *t.Owner:
		return fmt.Sprintf("tap %s has owner %d instead of %d", t.Name, tap.Owner, *t.Owner), nil
	case t.Group != nil && tap.Group != *t.Group:
		return fmt.Sprintf("tap %s has group %d instead of %d", t.Name, tap.Group, *t.Group), nil
	case t.MTU > 0 && tap.MTU != t.MTU:
		return fmt.Sprintf("tap %s has MTU %d instead of %d", t.Name, tap.MTU, t.MTU), nil
	case master > 0 && tap.MasterIndex != master:
		return fmt.Sprintf("tap %s is not a port of bridge %s", t.Name, t.Bridge), nil
	case t.MultiQueue != (tap.Flags&netlink.TUNTAP_MULTI_QUEUE != 0):
		return fmt.Sprintf("multiple queues of tap %s: not as configured (%t)", t.Name, t.MultiQueue), nil
	}
	return "", nil
}

// findInside finds a link of the sandbox. If the link is wrong, diff says why.
func findInside(env *Env, name string, mac net.HardwareAddr) (link netlink.Link, diff string, err error) {
	link, err = env.Link(Sandbox, name)
	switch {
	case nl.IsNotFound(err):
		return nil, fmt.Sprintf("Container Interface name in prevResult: %s not found", name), nil
	case err != nil:
		return nil, "", err
	case len(mac) > 0 && !bytes.Equal(link.Attrs().HardwareAddr, mac):
		return nil, fmt.Sprintf("Interface %s Mac %s doesn't match container Mac: %s", name, mac, link.Attrs().HardwareAddr), nil
	}
	return link, "", nil
}
