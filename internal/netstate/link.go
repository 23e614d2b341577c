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

// Veth is a pair of virtual Ethernet devices: Name, up, on the host and Peer,
// still down, in the sandbox.
type Veth struct {
	Name, Peer string
	MTU        int // bytes; 0 is the kernel's default
	// The addresses are ours to choose: those the kernel draws at random are
	// replaced by systemd-udevd (MACAddressPolicy) some time later.
	MAC, PeerMAC net.HardwareAddr
	Owner        owner.Key // goes into the ifalias
	NetNS        string    // path of the sandbox, for people
}

// String is the ip command.
func (v Veth) String() string {
	mtu := ""
	if v.MTU > 0 {
		mtu = fmt.Sprintf(" mtu %d", v.MTU)
	}
	return fmt.Sprintf("host: ip link add %s up address %s%s alias %s type veth peer name %s address %s%s netns %s",
		v.Name, v.MAC, mtu, v.Owner.Alias(), v.Peer, v.PeerMAC, mtu, v.NetNS)
}

// Ensure makes the pair in one message and marks it.
func (v Veth) Ensure(ctx context.Context, env *Env) (Undo, error) {
	link := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs()}
	link.Name, link.MTU, link.HardwareAddr, link.Flags = v.Name, v.MTU, v.MAC, net.FlagUp
	link.PeerName, link.PeerHardwareAddr, link.PeerMTU = v.Peer, v.PeerMAC, uint32(v.MTU)
	link.PeerNamespace = netlink.NsFd(env.Sandbox.NS.Fd())
	err := env.Host.LinkAdd(link)
	if errors.Is(err, unix.EEXIST) {
		return nil, ErrVethExists(v.Peer, v.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("failed to make veth pair: %w", err)
	}
	undo := func(context.Context) error {
		env.Forget(Host, v.Name)
		env.Forget(Sandbox, v.Peer)
		return DeleteLink(env.Host, link)
	}
	if err := v.adopt(env, link); err != nil {
		return nil, errors.Join(err, undo(ctx))
	}
	return undo, nil
}

// ErrVethExists is what an ADD says when the container has the interface.
func ErrVethExists(peer, name string) error {
	return fmt.Errorf("container veth name (%q) peer provided (%q) already exists", peer, name)
}

// adopt writes our mark and looks the other end up.
func (v Veth) adopt(env *Env, link *netlink.Veth) error {
	if err := env.Host.LinkSetAlias(link, v.Owner.Alias()); err != nil {
		return fmt.Errorf("set alias of %s: %w", v.Name, err)
	}
	link.Alias = v.Owner.Alias()
	env.Remember(Host, link)
	_, err := env.Link(Sandbox, v.Peer)
	return err
}

// Diff wants both ends, paired, with the addresses of the previous result.
func (v Veth) Diff(_ context.Context, env *Env) (string, error) {
	inside, d, err := findVeth(env, Sandbox, v.Peer, v.PeerMAC)
	if err != nil || d != "" {
		return d, err
	}
	host, d, err := findVeth(env, Host, v.Name, v.MAC)
	if err != nil || d != "" {
		return d, err
	}
	if host.Attrs().ParentIndex != inside.Attrs().Index || inside.Attrs().ParentIndex != host.Attrs().Index {
		return fmt.Sprintf("%s and %s in the container are not one veth pair", v.Name, v.Peer), nil
	}
	return "", nil
}

// findVeth says in d what is wrong with one end.
func findVeth(env *Env, w Where, name string, mac net.HardwareAddr) (link netlink.Link, d string, err error) {
	link, err = env.Link(w, name)
	switch {
	case nl.IsNotFound(err):
		return nil, fmt.Sprintf("Interface name %s not found", name), nil
	case err != nil:
		return nil, "", err
	case link.Type() != "veth" && w == Sandbox:
		return nil, fmt.Sprintf("Error: Container interface %s not of type veth", name), nil
	case link.Type() != "veth":
		return nil, fmt.Sprintf("Interface %s not of type veth", name), nil
	case len(mac) > 0 && !bytes.Equal(link.Attrs().HardwareAddr, mac) && w == Sandbox:
		return nil, fmt.Sprintf("Interface %s Mac %s doesn't match container Mac: %s", name, mac, link.Attrs().HardwareAddr), nil
	case len(mac) > 0 && !bytes.Equal(link.Attrs().HardwareAddr, mac):
		return nil, fmt.Sprintf("Interface %s Mac doesn't match: %s not found", name, mac), nil
	}
	return link, "", nil
}

// DeleteLink deletes a link; one that is gone is no error. The kernel takes
// 15-20 ms for it (RCU), so a pair is deleted by one end only.
func DeleteLink(c *nl.Conn, link netlink.Link) error {
	if err := c.LinkDel(link); err != nil && !nl.IsNotFound(err) {
		return fmt.Errorf("failed to delete %q: %w", link.Attrs().Name, err)
	}
	return nil
}

// Up sets a link up.
type Up struct {
	Where Where
	Link  string
}

// String is the ip command.
func (u Up) String() string { return fmt.Sprintf("%s: ip link set %s up", u.Where, u.Link) }

// Ensure sets the link up unless it is.
func (u Up) Ensure(_ context.Context, env *Env) (Undo, error) {
	conn := env.Conn(u.Where)
	link, err := env.Link(u.Where, u.Link)
	if err != nil {
		return nil, err
	}
	if link.Attrs().Flags&net.FlagUp != 0 {
		return nil, nil
	}
	if err := conn.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("failed to set %q UP: %w", u.Link, err)
	}
	link.Attrs().Flags |= net.FlagUp
	return func(context.Context) error {
		if err := conn.LinkSetDown(link); err != nil && !nl.IsNotFound(err) {
			return fmt.Errorf("set %s down: %w", u.Link, err)
		}
		return nil
	}, nil
}

// Diff wants the link to be up.
func (u Up) Diff(_ context.Context, env *Env) (string, error) {
	link, err := env.Link(u.Where, u.Link)
	switch {
	case nl.IsNotFound(err):
		return fmt.Sprintf("Interface name %s not found", u.Link), nil
	case err != nil:
		return "", err
	case link.Attrs().Flags&net.FlagUp == 0:
		return fmt.Sprintf("Interface %s is down", u.Link), nil
	}
	return "", nil
}
