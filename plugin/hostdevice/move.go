// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/netns"
)

// move is a device of the host that is moved into the container.
type move struct {
	device *record.Device
	ifName string
	netns  string // path, for messages
	mac    net.HardwareAddr
}

// String returns the ip commands.
func (m move) String() string {
	return fmt.Sprintf("host: ip link set %s alias %[1]s; ip link set %[1]s netns %s name %s", m.device.Name, m.netns, m.ifName)
}

// Ensure stores the device's name in its alias, as the reference does, and then moves the device.
// The kernel moves and renames the device under one lock. So udev and other programs see it
// disappear, and never see the new name.
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

// Diff reports whether the moved device is missing or has another MAC than in the previous
// result.
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

// endTime is how long the kernel may take to end a namespace and return its real devices,
// after the last reference is gone.
const endTime = 2 * time.Second

// trip is a device and the namespaces where it may be.
type trip struct {
	*record.Device
	ifName  string // name in the container
	sandbox *nl.Conn
	host    *nl.Conn
}

// home moves the device to the host and restores its properties. After any interruption, and even
// if nothing was moved, home may be called again.
func (t trip) home(ctx context.Context) error {
	away := false
	if t.sandbox != nil {
		link, err := search(t.sandbox, t.Device, t.ifName)
		if err != nil {
			return err
		}
		if away = link != nil; away {
			if err := t.out(link); err != nil {
				return err
			}
		}
	}
	link, err := t.arrived(ctx)
	if err != nil || link == nil {
		return err
	}
	if !away && link.Attrs().Alias != t.Name {
		return nil // the device never left, or has been restored
	}
	return t.restore(link)
}

// arrived finds the device on the host. If a virtual device is missing, the kernel deleted it
// with its namespace. If the hardware was unplugged, the device does not come back.
func (t trip) arrived(ctx context.Context) (netlink.Link, error) {
	for end := time.Now().Add(endTime); ; {
		link, err := search(t.host, t.Device, t.ifName)
		if err != nil || link != nil || t.Kind != kindOfReal || unplugged(t.Path) {
			return link, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("device %s (%s) is neither on the host nor in the container: %w", t.Name, t.MAC, kernel.ErrUnfinished)
		}
	}
}

// out moves the device out of the container. It first sets the device's original name. So no
// program on the host, such as udev, sees another name and changes it.
func (t trip) out(link netlink.Link) error {
	index := link.Attrs().Index
	if err := t.sandbox.SetLink(index, nl.LinkChange{Down: true, Alias: &t.Name}); err != nil {
		return fmt.Errorf("set %s down: %w", t.ifName, err)
	}
	// The container may have another link with this name. Then the device is renamed on the host.
	if err := t.sandbox.SetLink(index, nl.LinkChange{Name: t.Name}); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("failed to rename device %q to %q: %w", link.Attrs().Name, t.Name, err)
	}
	own, err := netns.Current()
	if err != nil {
		return err
	}
	defer own.Close() //nolint:errcheck // read only
	return t.send(link, own.Fd())
}

// send moves the device to the host. If another device there has its name, the kernel chooses
// another one (fallback). The device loses alternative names that other devices have.
func (t trip) send(link netlink.Link, hostNS int) (err error) {
	index := link.Attrs().Index
	for _, name := range []string{t.Name, fallback} {
		err = t.sandbox.SetLink(index, nl.LinkChange{NetNS: hostNS, Name: name})
		if !errors.Is(err, unix.EEXIST) {
			break
		}
		if _, gone := t.sandbox.LinkAt(index); gone != nil {
			return nil // the device has moved but has the wrong name; restore renames it
		}
		for _, alt := range link.Attrs().AltNames {
			if _, err := t.host.Link(alt); err == nil {
				_ = t.sandbox.LinkDelAltName(link, alt) // the next try reports an error
			}
		}
	}
	if err != nil && !nl.IsNotFound(err) {
		return fmt.Errorf("failed to move %q to hostNS: %w", t.Name, err)
	}
	return nil
}

// fallback is the pattern of the names that the kernel chooses. The kernel takes the first
// free name.
const fallback = "dev%d"

// restore restores the device's properties on the host. It removes the alias last, because the
// alias shows that a device is not completely restored.
func (t trip) restore(link netlink.Link) error {
	index := link.Attrs().Index
	errs := []error{t.rename(link), t.dress(link)}
	if t.Up {
		errs = append(errs, wrap("set it up", t.host.SetLink(index, nl.LinkChange{Up: true})))
	}
	for _, a := range t.Addrs {
		errs = append(errs, t.addAddr(link, a))
	}
	for _, r := range t.Routes {
		errs = append(errs, t.addRoute(index, r))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("restore device %s: %w: %w", t.Name, kernel.ErrUnfinished, err)
	}
	if err := t.host.SetLink(index, nl.LinkChange{Alias: &t.Alias}); err != nil && !nl.IsNotFound(err) {
		return fmt.Errorf("failed to unset alias of %q: %w", t.Name, err)
	}
	return nil
}

func wrap(what string, err error) error {
	if err == nil || nl.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// rename restores the device's name. Another link may have the name by now.
func (t trip) rename(link netlink.Link) error {
	a := link.Attrs()
	if a.Name == t.Name {
		return nil
	}
	if a.Flags&net.FlagUp != 0 {
		if err := t.host.SetLink(a.Index, nl.LinkChange{Down: true}); err != nil {
			return wrap("set it down", err)
		}
	}
	err := t.host.SetLink(a.Index, nl.LinkChange{Name: t.Name})
	if errors.Is(err, unix.EEXIST) {
		err = fmt.Errorf("the host has another device %s; this device keeps the name %s until the other is gone: %w", t.Name, a.Name, err)
	}
	return wrap("rename", err)
}

// dress restores MAC, MTU and master if they differ.
func (t trip) dress(link netlink.Link) error {
	a, to := link.Attrs(), nl.LinkChange{}
	if mac, err := net.ParseMAC(t.MAC); err == nil && a.HardwareAddr.String() != t.MAC {
		to.MAC = mac
	}
	if t.MTU > 0 && a.MTU != t.MTU {
		to.MTU = t.MTU
	}
	if to.MAC != nil || to.MTU != 0 {
		if err := t.host.SetLink(a.Index, to); err != nil {
			return wrap("restore address and MTU", err)
		}
	}
	if t.Master == "" {
		return nil
	}
	master, err := t.host.Link(t.Master)
	if err != nil {
		return wrap("find master", err)
	}
	return wrap("make it a port of "+t.Master, t.host.SetLink(a.Index, nl.LinkChange{Master: master.Attrs().Index}))
}

func (t trip) addAddr(link netlink.Link, a record.DeviceAddr) error {
	addr := &netlink.Addr{IPNet: ipNet(a.Prefix), Peer: ipNet(a.Peer), Label: a.Label, Scope: a.Scope, Flags: a.Flags}
	if a.Prefix.Addr().Is6() {
		addr.Flags |= unix.IFA_F_NODAD // the device had this address before
	}
	if err := t.host.AddrAdd(link, addr); err != nil && !errors.Is(err, unix.EEXIST) {
		return wrap("address "+a.Prefix.String(), err)
	}
	return nil
}

func (t trip) addRoute(index int, r record.DeviceRoute) error {
	msg := &netlink.Route{
		LinkIndex: index, Dst: ipNet(r.Dst), Gw: r.Gateway.AsSlice(), Src: r.Src.AsSlice(), Table: r.Table, Priority: r.Priority,
		Scope: netlink.Scope(r.Scope), Protocol: netlink.RouteProtocol(r.Protocol), MTU: r.MTU, AdvMSS: r.AdvMSS, Flags: r.Flags,
	}
	if err := t.host.RouteAdd(msg); err != nil && !errors.Is(err, unix.EEXIST) {
		return wrap("route "+r.Dst.String(), err)
	}
	return nil
}
