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
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
)

// Child is a link in the sandbox on top of another link, its master. Ensure leaves the child
// down.
//
// Ensure creates the child directly in the sandbox under the name Temp and then renames it. The
// final name would not work at first: before Linux 6.15 the kernel refuses a name that exists in
// the namespace of the request, and the host has an eth0 too.
type Child struct {
	Kind      netlink.Link // *netlink.Macvlan, *netlink.IPVlan, *netlink.Vlan or *netlink.Dummy, with options
	Name      string
	Temp      string // first name, derived from the owner so that DEL finds the link
	Master    string // "" if the kind has no master
	MasterIn  Where
	MTU       int              // bytes; 0 means the master's MTU
	MAC       net.HardwareAddr // nil means that the kernel chooses
	Owner     owner.Key        // written into the ifalias
	NetNS     string           // path of the sandbox, for messages
	AnyMaster bool             // Diff does not compare the master
}

// String returns the ip command that makes the link.
func (c Child) String() string {
	s := fmt.Sprintf("%s: ip link add", c.MasterIn)
	if c.Master != "" {
		s += " link " + c.Master
	}
	s += " name " + c.Temp
	if c.MAC != nil {
		s += " address " + c.MAC.String()
	}
	if c.MTU > 0 {
		s += fmt.Sprintf(" mtu %d", c.MTU)
	}
	return fmt.Sprintf("%s netns %s type %s; sandbox: ip link set %s name %s alias %s",
		s, c.NetNS, kindText(c.Kind), c.Temp, c.Name, c.Owner.Alias())
}

// Ensure makes the link and writes the owner into its alias.
func (c Child) Ensure(ctx context.Context, env *Env) (Undo, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = c.Temp, c.MTU, c.MAC
	if c.MasterIn == Host {
		attrs.Namespace = netlink.NsFd(env.Sandbox.NS.Fd())
	}
	if c.Master != "" {
		master, err := env.Link(c.MasterIn, c.Master)
		if err != nil {
			return nil, fmt.Errorf("failed to lookup master %q: %w", c.Master, err)
		}
		attrs.ParentIndex = master.Attrs().Index
	}
	*c.Kind.Attrs() = attrs
	if err := untilEnded(ctx, unix.EEXIST, func() error { return c.add(env) }); err != nil {
		return nil, fmt.Errorf("failed to create %s: %w", c.Kind.Type(), c.explain(err))
	}
	if err := c.adopt(env); err != nil {
		return nil, errors.Join(err, c.undo(env)(ctx))
	}
	return c.undo(env), nil
}

// add asks the kernel for the link.
func (c Child) add(env *Env) error {
	err := env.Conn(c.MasterIn).LinkAdd(c.Kind)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	if _, look := env.Sandbox.Link(c.Temp); look == nil { // waiting does not help
		return fmt.Errorf("an ADD that was killed left the link %s in %s; run DEL", c.Temp, c.NetNS)
	}
	return err
}

// explain adds the likely cause to an error of the kernel.
func (c Child) explain(err error) error {
	switch {
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%w (%s is used otherwise: a port of a bridge or bond, or the master of links of another kind)", err, c.Master)
	case errors.Is(err, unix.EEXIST):
		return fmt.Errorf("%w (%s has a %s already)", err, c.Master, kindText(c.Kind))
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w (the kernel has no %s: module %[2]s)", err, c.Kind.Type())
	}
	return err
}

// adopt sets the link's name and our mark in one message, so no program sees the name without
// the mark. adopt sets the Ethernet address too, because a passthru macvlan starts with its
// master's address.
func (c Child) adopt(env *Env) error {
	link, err := env.Sandbox.Link(c.Temp)
	if err != nil {
		return err
	}
	alias := c.Owner.Alias()
	to := nl.LinkChange{Name: c.Name, Alias: &alias}
	if c.MAC != nil && !bytes.Equal(link.Attrs().HardwareAddr, c.MAC) {
		to.MAC, link.Attrs().HardwareAddr = c.MAC, c.MAC
	}
	if err := env.Sandbox.SetLink(link.Attrs().Index, to); err != nil {
		return fmt.Errorf("failed to rename %s to %q: %w", c.Kind.Type(), c.Name, err)
	}
	link.Attrs().Name, link.Attrs().Alias = c.Name, alias
	env.Remember(Sandbox, link)
	return nil
}

func (c Child) undo(env *Env) Undo {
	return func(context.Context) error {
		env.Forget(Sandbox, c.Name)
		if err := DeleteUnmarked(env.Sandbox, c.Temp, c.Kind.Type()); err != nil {
			return err
		}
		link, err := env.Sandbox.Link(c.Name)
		if nl.IsNotFound(err) || err == nil && link.Attrs().Alias != c.Owner.Alias() {
			return nil
		}
		if err != nil {
			return err
		}
		return DeleteLink(env.Sandbox, link)
	}
}

// DeleteUnmarked deletes a link that still has its temporary name and no mark. A killed ADD
// leaves such a link.
func DeleteUnmarked(conn *nl.Conn, temp, kind string) error {
	link, err := conn.Link(temp)
	if nl.IsNotFound(err) || err == nil && (link.Type() != kind || link.Attrs().Alias != "") {
		return nil
	}
	if err != nil {
		return err
	}
	return DeleteLink(conn, link)
}

// Diff reports whether the link is missing or has another kind, master or Ethernet address.
func (c Child) Diff(_ context.Context, env *Env) (string, error) {
	link, err := env.Link(Sandbox, c.Name)
	switch {
	case nl.IsNotFound(err):
		return fmt.Sprintf("Container Interface name in prevResult: %s not found", c.Name), nil
	case err != nil:
		return "", err
	case link.Type() != c.Kind.Type():
		return fmt.Sprintf("Error: Container interface %s not of type %s", c.Name, c.Kind.Type()), nil
	}
	if d := c.diffKind(link); d != "" {
		return d, nil
	}
	if has := link.Attrs().HardwareAddr; c.MAC != nil && !bytes.Equal(has, c.MAC) {
		return fmt.Sprintf("Interface %s Mac %s doesn't match container Mac: %s", c.Name, c.MAC, has), nil
	}
	return c.diffMaster(env, link)
}

// diffMaster reports whether the master is down. In that case the link carries no traffic.
func (c Child) diffMaster(env *Env, link netlink.Link) (string, error) {
	if c.Master == "" && !c.AnyMaster {
		return "", nil // this kind has no master
	}
	master, d, err := c.master(env, link)
	if err != nil || d != "" {
		return d, err
	}
	if master.Attrs().Flags&net.FlagUp == 0 {
		return fmt.Sprintf("master %s of %s is down", master.Attrs().Name, c.Name), nil
	}
	return "", nil
}

// master finds the master. If the master is wrong, d says why.
func (c Child) master(env *Env, link netlink.Link) (master netlink.Link, d string, err error) {
	if c.AnyMaster {
		if master, err = env.Conn(c.MasterIn).LinkAt(link.Attrs().ParentIndex); nl.IsNotFound(err) {
			return nil, fmt.Sprintf("the master of %s is not found", c.Name), nil
		}
		return master, "", err
	}
	master, err = env.Link(c.MasterIn, c.Master)
	switch {
	case nl.IsNotFound(err):
		return nil, fmt.Sprintf("failed to lookup master %q: Link not found", c.Master), nil
	case err != nil:
		return nil, "", err
	case master.Attrs().Index != link.Attrs().ParentIndex:
		return nil, fmt.Sprintf("Interface %s is not on master %s", c.Name, c.Master), nil
	}
	return master, "", nil
}

// kindText returns the kind and the options of a link, as the ip command writes them.
func kindText(l netlink.Link) string {
	switch l := l.(type) {
	case *netlink.Macvlan:
		s := "macvlan mode " + macvlanMode(l.Mode)
		if l.BCQueueLen > 0 {
			s += fmt.Sprintf(" bcqueuelen %d", l.BCQueueLen)
		}
		return s
	case *netlink.IPVlan:
		return "ipvlan mode " + ipvlanMode(l.Mode)
	case *netlink.Vlan:
		return fmt.Sprintf("vlan id %d", l.VlanId)
	}
	return l.Type()
}

func macvlanMode(m netlink.MacvlanMode) string {
	switch m {
	case netlink.MACVLAN_MODE_PRIVATE:
		return "private"
	case netlink.MACVLAN_MODE_VEPA:
		return "vepa"
	case netlink.MACVLAN_MODE_BRIDGE:
		return "bridge"
	case netlink.MACVLAN_MODE_PASSTHRU:
		return "passthru"
	case netlink.MACVLAN_MODE_SOURCE:
		return "source"
	}
	return fmt.Sprintf("%d", m)
}

func ipvlanMode(m netlink.IPVlanMode) string {
	switch m {
	case netlink.IPVLAN_MODE_L2:
		return "l2"
	case netlink.IPVLAN_MODE_L3:
		return "l3"
	case netlink.IPVLAN_MODE_L3S:
		return "l3s"
	}
	return fmt.Sprintf("%d", m)
}

// diffKind says which options of a link differ. Both links have the same kind.
func (c Child) diffKind(have netlink.Link) string {
	switch have := have.(type) {
	case *netlink.Macvlan:
		if want := c.Kind.(*netlink.Macvlan); have.Mode != want.Mode {
			return fmt.Sprintf("container macvlan mode %s does not match expected value: %s", macvlanMode(have.Mode), macvlanMode(want.Mode))
		}
	case *netlink.IPVlan:
		if want := c.Kind.(*netlink.IPVlan); have.Mode != want.Mode {
			return fmt.Sprintf("Container IPVlan mode %s does not match expected value: %s", ipvlanMode(have.Mode), ipvlanMode(want.Mode))
		}
	case *netlink.Vlan:
		if want := c.Kind.(*netlink.Vlan); have.VlanId != want.VlanId {
			return fmt.Sprintf("vlan: Interface %s has VLAN ID %d, configured is %d", have.Name, have.VlanId, want.VlanId)
		}
		if c.MTU != 0 && have.MTU != c.MTU {
			return fmt.Sprintf("vlan: Interface %s has MTU %d, configured is %d", have.Name, have.MTU, c.MTU)
		}
	}
	return ""
}
