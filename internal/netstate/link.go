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
	"github.com/patchbay-net/patchbay/owner"
)

// Veth is a pair of virtual Ethernet devices: Name, up, on the host and Peer, still down,
// in the sandbox.
type Veth struct {
	Name, Peer string
	MTU        int // bytes; 0 is the kernel's default
	// We choose the addresses: systemd-udevd (MACAddressPolicy) replaces those that the
	// kernel draws at random some time later.
	MAC, PeerMAC net.HardwareAddr
	Owner        owner.Key // goes into the ifalias
	NetNS        string    // path of the sandbox, for people

	Bridge string // the bridge that Name becomes a port of; may be empty
	Port   nl.PortFlags

	// NoIPv6 keeps the kernel from giving the host's end an IPv6 address: a bridge's port
	// needs none, nor does a link for IPv4 alone. A link that IPv6 is forwarded to needs
	// one: the kernel uses it as the source of neighbour solicitations.
	NoIPv6 bool
}

// String is the ip command.
func (v Veth) String() string {
	mtu, port, mode := "", "", ""
	if v.MTU > 0 {
		mtu = fmt.Sprintf(" mtu %d", v.MTU)
	}
	if v.Bridge != "" {
		port = " master " + v.Bridge
	}
	if v.NoIPv6 {
		mode = " addrgenmode none"
	}
	return fmt.Sprintf("host: ip link add %s up%s address %s%s alias %s%s%s type veth peer name %s address %s%s netns %s",
		v.Name, port, v.MAC, mtu, v.Owner.Alias(), mode, portText(v.Port), v.Peer, v.PeerMAC, mtu, v.NetNS)
}

// Ensure makes the pair in one message and marks it with a second.
func (v Veth) Ensure(ctx context.Context, env *Env) (Undo, error) {
	master := 0
	if v.Bridge != "" {
		br, err := env.Link(Host, v.Bridge)
		if err != nil {
			return nil, err
		}
		master = br.Attrs().Index
	}
	err := env.Host.AddVeth(nl.Veth{
		Name: v.Name, Peer: v.Peer, MAC: v.MAC, PeerMAC: v.PeerMAC, MTU: v.MTU,
		Master: master, PeerNS: env.Sandbox.NS.Fd(),
	})
	if err != nil {
		return nil, v.addError(err)
	}
	if err := v.adopt(env); err != nil {
		return nil, errors.Join(err, v.undo(env)(ctx))
	}
	return v.undo(env), nil
}

func (v Veth) addError(err error) error {
	switch {
	case errors.Is(err, unix.EEXIST):
		return ErrVethExists(v.Peer, v.Name)
	case errors.Is(err, unix.EXFULL):
		return fmt.Errorf("failed to connect %q to bridge %v: it has all the ports it can have (1023): %w", v.Name, v.Bridge, err)
	}
	return fmt.Errorf("failed to make veth pair: %w", err)
}

func (v Veth) undo(env *Env) Undo {
	return func(context.Context) error {
		env.Forget(Host, v.Name)
		env.Forget(Sandbox, v.Peer)
		link, err := env.Host.Link(v.Name)
		if nl.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		return DeleteLink(env.Host, link)
	}
}

// VethExistsError reports that the container already has the interface of an ADD.
type VethExistsError struct {
	IfName, Host string
	In           string // the namespace of the attachment with the same names; "" when the interface belongs to none
}

// Error is the reference's text.
func (e *VethExistsError) Error() string {
	return fmt.Sprintf("container veth name (%q) peer provided (%q) already exists", e.IfName, e.Host)
}

// ErrVethExists is the error of an ADD when the container already has the interface.
func ErrVethExists(peer, name string) error { return &VethExistsError{IfName: peer, Host: name} }

// adopt writes our mark and looks up the other end.
func (v Veth) adopt(env *Env) error {
	setAlias := env.Host.SetAlias
	if v.NoIPv6 {
		setAlias = env.Host.SetAliasQuiet
	}
	if err := setAlias(v.Name, v.Owner.Alias(), v.Port); err != nil {
		return fmt.Errorf("set alias%s of %s: %w", portText(v.Port), v.Name, err)
	}
	_, err := env.Link(Sandbox, v.Peer)
	return err
}

// Diff expects both ends, paired, with the addresses of the previous result.
func (v Veth) Diff(ctx context.Context, env *Env) (string, error) {
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
	if host.Attrs().Flags&net.FlagUp == 0 {
		return fmt.Sprintf("Interface %s is down", v.Name), nil
	}
	if d := withoutARP(inside); d != "" {
		return d, nil
	}
	if v.Bridge == "" {
		return withoutARP(host), nil
	}
	return Port{Link: v.Name, Bridge: v.Bridge, PortFlags: v.Port}.Diff(ctx, env)
}

// findVeth finds one end; d names what is wrong with it.
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

// DeleteLink deletes a link; a missing one is no error. The kernel takes 15-20 ms for it
// (RCU), so delete only one end of a pair.
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

	// Notify sets arp_notify as well: the kernel announces the link's IPv4
	// addresses whenever it goes up or gets another Ethernet address.
	Notify bool
}

// String is the ip command.
func (u Up) String() string {
	s := fmt.Sprintf("%s: ip link set %s up", u.Where, u.Link)
	if u.Notify {
		s += fmt.Sprintf("; sysctl -w net/ipv4/conf/%s/arp_notify=1", u.Link)
	}
	return s
}

// Ensure sets the link up unless it is up.
func (u Up) Ensure(_ context.Context, env *Env) (Undo, error) {
	conn := env.Conn(u.Where)
	link, err := env.Link(u.Where, u.Link)
	if err != nil {
		return nil, err
	}
	if link.Attrs().Flags&net.FlagUp != 0 && !u.Notify {
		return nil, nil
	}
	if err := conn.SetUp(link.Attrs().Index, u.Notify); err != nil {
		return nil, fmt.Errorf("failed to set %q UP: %w", u.Link, err)
	}
	link.Attrs().Flags |= net.FlagUp
	return func(context.Context) error {
		link.Attrs().Flags &^= net.FlagUp
		if err := conn.LinkSetDown(link); err != nil && !nl.IsNotFound(err) {
			return fmt.Errorf("set %s down: %w", u.Link, err)
		}
		return nil
	}, nil
}

// Diff expects the link to be up.
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

// Carries reports whether link is an end of a pair whose other end is up, in another
// namespace: then that namespace lives.
func Carries(link netlink.Link) bool {
	at := link.Attrs()
	return link.Type() == "veth" && at.RawFlags&unix.IFF_LOWER_UP != 0 && at.NetNsID >= 0
}
