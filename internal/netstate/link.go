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

// Veth is a pair of virtual Ethernet devices. Name is on the host, and up unless Down is set. Peer is
// still down and in the sandbox.
type Veth struct {
	Name, Peer string
	MTU        int // bytes; 0 means the kernel's default
	// These MAC addresses come from us. If the kernel chose them at random, systemd-udevd would
	// replace them some time later (MACAddressPolicy).
	MAC, PeerMAC net.HardwareAddr
	Owner        owner.Key // written into the ifalias
	NetNS        string    // path of the sandbox, for messages

	Bridge string // Name becomes a port of this bridge; may be empty
	Port   nl.PortFlags

	// Down leaves Name down until Up sets it up. Each change of a link that is up, and each change of
	// its carrier, makes the kernel walk all IPv6 routes of the host (addrconf_notify): with 5,000
	// links that takes 0.8 ms. So Name should go up after it has its marks and Peer is up.
	Down bool

	// NoIPv6 stops the kernel from giving the host's end an IPv6 address. A port of a bridge needs
	// no IPv6 address, nor does a link that carries only IPv4. A link to which the host forwards
	// IPv6 needs one, because the kernel uses it as the source of neighbour solicitations.
	NoIPv6 bool
}

// String returns the ip command that makes the pair.
func (v Veth) String() string {
	mtu, port, mode, up := "", "", "", " up"
	if v.MTU > 0 {
		mtu = fmt.Sprintf(" mtu %d", v.MTU)
	}
	if v.Bridge != "" {
		port = " master " + v.Bridge
	}
	if v.NoIPv6 {
		mode = " addrgenmode none"
	}
	if v.Down {
		up = ""
	}
	return fmt.Sprintf("host: ip link add %s%s%s address %s%s alias %s%s%s type veth peer name %s address %s%s netns %s",
		v.Name, up, port, v.MAC, mtu, v.Owner.Alias(), mode, portText(v.Port), v.Peer, v.PeerMAC, mtu, v.NetNS)
}

// Ensure makes the pair with one message and marks it with a second one.
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
		Master: master, PeerNS: env.Sandbox.NS.Fd(), Down: v.Down,
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

// VethExistsError means that the container already has the interface that an ADD wants to
// make.
type VethExistsError struct {
	IfName, Host string
	In           string // namespace of another attachment with the same names; "" if no attachment owns the interface
}

// Error returns the reference's text.
func (e *VethExistsError) Error() string {
	return fmt.Sprintf("container veth name (%q) peer provided (%q) already exists", e.IfName, e.Host)
}

// ErrVethExists returns the error of an ADD whose container already has the interface.
func ErrVethExists(peer, name string) error { return &VethExistsError{IfName: peer, Host: name} }

// adopt writes our mark into the alias and looks up the other end.
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

// Diff reports whether an end is missing, the ends are no pair, or an end has another address
// than in the previous result.
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
	if host.Attrs().Flags&net.FlagUp == 0 && !v.Down {
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

// findVeth finds one end of the pair. If the end is wrong, d says why.
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

// DeleteLink deletes a link. It accepts that the link is missing. The kernel takes 15-20 ms for a
// deletion (RCU). It deletes the other end of a pair too, so callers delete only one end.
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

	// Notify also sets arp_notify. With it the kernel announces the link's IPv4 addresses
	// whenever the link goes up or gets another Ethernet address.
	Notify bool
}

// String returns the ip command that sets the link up.
func (u Up) String() string {
	s := fmt.Sprintf("%s: ip link set %s up", u.Where, u.Link)
	if u.Notify {
		s += fmt.Sprintf("; sysctl -w net/ipv4/conf/%s/arp_notify=1", u.Link)
	}
	return s
}

// Ensure sets the link up if it is down.
func (u Up) Ensure(ctx context.Context, env *Env) (Undo, error) {
	conn := env.Conn(u.Where)
	link, err := env.Link(u.Where, u.Link)
	if err != nil {
		return nil, err
	}
	if link.Attrs().Flags&net.FlagUp != 0 && !u.Notify {
		return nil, nil
	}
	err = untilEnded(ctx, unix.EADDRINUSE, func() error { return conn.SetUp(link.Attrs().Index, u.Notify) })
	if err != nil {
		return nil, fmt.Errorf("failed to set %q UP: %w", u.Link, explainUp(link, err))
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

// explainUp adds the cause to the error that the kernel has for a macvlan.
func explainUp(link netlink.Link, err error) error {
	if errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("%w (its master has the Ethernet address %s, or another link on it)", err, link.Attrs().HardwareAddr)
	}
	return err
}

// Diff reports whether the link is down.
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

// Carries reports whether link is one end of a veth pair whose other end is up and in another
// namespace. Then that namespace is in use.
func Carries(link netlink.Link) bool {
	at := link.Attrs()
	return link.Type() == "veth" && at.RawFlags&unix.IFF_LOWER_UP != 0 && at.NetNsID >= 0
}
