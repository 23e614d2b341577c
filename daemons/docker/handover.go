// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/daemons/docker/state"
	"github.com/patchbay-net/patchbay/internal/dhcprpc"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/netns"
)

// linkName returns the interface's name while it is on the host: a prefix and 10 of the id's 64
// random digits.
func linkName(endpointID string) string { return "cni" + short(endpointID, 10) }

// marker returns the alias that the driver gives to a link without an alias, so that it can
// find the link again.
func marker(endpointID string) string { return markerPrefix + short(endpointID, 32) }

const markerPrefix = "patchbay-docker:"

func short(s string, n int) string { return s[:min(n, len(s))] }

func (d *Driver) inside(path string) (*nl.Conn, error) {
	ns, err := netns.Open(path)
	if err != nil {
		return nil, err
	}
	return nl.In(ns, d.opts.Paths.Proc)
}

// sandboxLink opens the sandbox and finds the endpoint's link in it. The caller closes the
// connection.
func (d *Driver) sandboxLink(e *state.Endpoint) (*nl.Conn, netlink.Link, error) {
	c, err := d.inside(e.Sandbox)
	if err != nil {
		return nil, nil, err
	}
	link, err := d.find(c, e)
	if err != nil {
		c.Close()
		return nil, nil, fmt.Errorf("look for the interface in %s: %w", e.Sandbox, err)
	}
	return c, link, nil
}

// live reports whether there is a namespace at a path, and which one. If it cannot find out, for
// example because too many files are open, it returns an error: a running container must not
// count as dead.
func live(path string) (id netns.ID, exists bool, err error) {
	if path == "" {
		return netns.ID{}, false, nil
	}
	ns, err := netns.Open(path)
	if netns.Gone(err) || errors.Is(err, unix.ENOTDIR) {
		return netns.ID{}, false, nil
	}
	if err != nil {
		return netns.ID{}, false, err
	}
	defer ns.Close() //nolint:errcheck // read only
	id, err = ns.ID()
	return id, err == nil, err
}

// inSandbox reports whether the sandbox that the endpoint joined still exists.
func inSandbox(e *state.Endpoint) (bool, error) {
	id, exists, err := live(e.Sandbox)
	return exists && id == e.SandboxID, err
}

// offer moves the interface from the holding namespace to the host's namespace. The link gets a
// name and a mark by which the driver finds it again.
func (d *Driver) offer(e *state.Endpoint) error {
	c, err := d.inside(e.Hold)
	if err != nil {
		return err
	}
	defer c.Close()
	link, err := c.Link(holdName)
	if nl.IsNotFound(err) && d.offered(e) {
		return nil // an earlier Join has moved it
	}
	if err != nil {
		return fmt.Errorf("hand over interface: %w", err)
	}
	host, err := netns.Current()
	if err != nil {
		return err
	}
	defer host.Close() //nolint:errcheck // read only
	to := nl.LinkChange{NetNS: host.Fd(), Name: linkName(e.ID)}
	if e.Kernel.Alias == "" {
		mark := marker(e.ID)
		to.Alias = &mark
	}
	index := link.Attrs().Index
	if err := c.SetLink(index, nl.LinkChange{Down: true}); err != nil {
		return fmt.Errorf("set interface down: %w", err)
	}
	if err := c.SetLink(index, to); err != nil {
		return fmt.Errorf("move interface to the host as %s: %w", to.Name, err)
	}
	return nil
}

func (d *Driver) offered(e *state.Endpoint) bool {
	c, err := nl.Host(d.opts.Paths.Proc)
	if err != nil {
		return false
	}
	defer c.Close()
	link, err := c.Link(linkName(e.ID))
	return err == nil && ours(e, link)
}

// ours reports whether a link has the endpoint's mark.
func ours(e *state.Endpoint, link netlink.Link) bool {
	alias := marker(e.ID)
	if e.Kernel != nil && e.Kernel.Alias != "" {
		alias = e.Kernel.Alias
	}
	return link.Attrs().Alias == alias
}

// find returns the endpoint's link. In a sandbox the link may have any name, so find looks for
// the mark and the MAC address. On the host, find looks only for the name: another link, such as
// the master of an ipvlan, may have the same MAC address.
func (d *Driver) find(c *nl.Conn, e *state.Endpoint) (netlink.Link, error) {
	l, err := c.Link(linkName(e.ID))
	if err == nil && (ours(e, l) || d.hasMAC(e, l)) {
		return l, nil
	}
	if err != nil && !nl.IsNotFound(err) {
		return nil, err
	}
	if c.NS == nil {
		return nil, noLink(e)
	}
	links, err := c.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var candidates []netlink.Link // used if another program has replaced the link's alias
	for _, l := range links {
		if ours(e, l) {
			return l, nil
		}
		if d.hasMAC(e, l) {
			candidates = append(candidates, l)
		}
	}
	if len(candidates) != 1 {
		return nil, noLink(e)
	}
	return candidates[0], nil
}

// noLink returns the error for an endpoint whose link does not exist. It does not wrap the
// netlink library's own error, whose method Error panics.
func noLink(e *state.Endpoint) error {
	return fmt.Errorf("no interface of endpoint %.12s: %w", e.ID, unix.ENODEV)
}

// hasMAC reports whether a link has the endpoint's MAC address and not the mark of another
// endpoint: ipvlan and vlan links of one master all have its address.
func (d *Driver) hasMAC(e *state.Endpoint, l netlink.Link) bool {
	return e.Kernel != nil && e.Kernel.MAC != "" && l.Attrs().HardwareAddr.String() == e.Kernel.MAC &&
		!strings.HasPrefix(l.Attrs().Alias, markerPrefix) && !d.anothers(e, l)
}

// anothers reports whether a link is another endpoint's. Any other mark tells nothing: a plugin that uses this driver has
// put its own mark in place of the endpoint's.
func (d *Driver) anothers(e *state.Endpoint, l netlink.Link) bool {
	if l.Attrs().Alias == "" {
		return false
	}
	all, err := d.state.Endpoints.List()
	return err != nil || slices.ContainsFunc(all, func(o *state.Endpoint) bool { return o.ID != e.ID && ours(o, l) })
}

// moveBack moves the interface back into the holding namespace, from the host or from a sandbox
// whose container has ended. It restores the name and the addresses, because plugins need them to
// remove their rules. It accepts that the interface does not exist.
func (d *Driver) moveBack(e *state.Endpoint) error {
	if e.Kernel == nil {
		return nil
	}
	c, err := d.holdOf(e)
	if c == nil || err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Link(holdName); nl.IsNotFound(err) {
		err = d.fetch(e, c.NS)
		if nl.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("take interface back: %w", err)
		}
	}
	return readdress(c, e.Kernel)
}

// fetch moves the link from the host. If the link is not there, fetch moves it from its sandbox.
func (d *Driver) fetch(e *state.Endpoint, to *netns.NS) error {
	host, err := nl.Host(d.opts.Paths.Proc)
	if err != nil {
		return err
	}
	defer host.Close()
	err = d.bring(host, e, to)
	if !nl.IsNotFound(err) {
		return err
	}
	if here, unsure := inSandbox(e); !here {
		return cmp.Or(unsure, err)
	}
	sandbox, err := d.inside(e.Sandbox)
	if err != nil {
		return err
	}
	defer sandbox.Close()
	d.restoreGateways(sandbox, e)
	return d.bring(sandbox, e, to)
}

func (d *Driver) bring(c *nl.Conn, e *state.Endpoint, to *netns.NS) error {
	link, err := d.find(c, e)
	if err != nil {
		return err
	}
	index := link.Attrs().Index
	if err := c.SetLink(index, nl.LinkChange{Down: true}); err != nil {
		return err
	}
	alias := e.Kernel.Alias
	return c.SetLink(index, nl.LinkChange{NetNS: to.Fd(), Name: holdName, Alias: &alias})
}

// readdress restores the addresses that libnetwork has removed.
func readdress(c *nl.Conn, s *state.Snapshot) error {
	link, err := c.Link(holdName)
	if err != nil {
		return err
	}
	errs := []error{c.LinkSetUp(link)}
	for _, a := range s.Addrs {
		errs = append(errs, addAddr(c, link, a))
	}
	return errors.Join(errs...)
}

func addAddr(c *nl.Conn, link netlink.Link, a netip.Prefix) error {
	addr := &netlink.Addr{IPNet: nl.IPNet(a)}
	if a.Addr().Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	if err := c.AddrAdd(link, addr); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add address %s: %w", a, err)
	}
	return nil
}

// keeperOf returns the socket of the process that keeps a network's DHCP leases. If there is
// none, it returns "". The driver must tell this keeper where the interface is, because the
// keeper sends its packets there.
func keeperOf(list *chain.List) string {
	conf, err := dhcprpc.Parse(first(list).Raw)
	if err != nil || conf.Type != "dhcp" {
		return ""
	}
	return conf.Socket()
}

// keeperTime limits a call to the keeper, which answers at once.
const keeperTime = 5 * time.Second

// errForeignKeeper means that the keeper is the reference's daemon, which cannot follow an
// interface that moves.
var errForeignKeeper = errors.New("it is not patchbayd, so the lease will neither be renewed nor given back")

// notifyKeeper tells the keeper where the interface is. A zero Where means that the interface
// is about to move. If this fails, the call of Docker still succeeds: the container works until
// its lease expires.
func (d *Driver) notifyKeeper(ctx context.Context, network string, e *state.Endpoint, at state.Where) {
	if e.Keeper != "" {
		d.logKeeper(e, callKeeper(ctx, network, e, at))
	}
}

func (d *Driver) logKeeper(e *state.Endpoint, err error) {
	if err != nil {
		d.opts.Log("endpoint %.12s: notify the keeper of DHCP leases at %s: %v", e.ID, e.Keeper, err)
	}
}

func callKeeper(ctx context.Context, network string, e *state.Endpoint, at state.Where) error {
	ctx, cancel := context.WithTimeout(ctx, keeperTime)
	defer cancel()
	config, err := json.Marshal(map[string]string{"name": network})
	if err != nil {
		return err
	}
	k, err := dhcprpc.Dial(ctx, e.Keeper)
	if err != nil {
		return err
	}
	defer k.Close()
	if !k.Ours {
		return errForeignKeeper
	}
	_, err = k.Call(ctx, dhcprpc.Move, &dhcprpc.Args{ContainerID: e.ID, IfName: holdName, Netns: at.NetNS, Path: at.IfName, StdinData: config})
	return err
}

// notifyReturn tells the keeper that the interface is back in the holding namespace, where the
// keeper can release the lease.
func (d *Driver) notifyReturn(ctx context.Context, network string, e *state.Endpoint) {
	if e.Keeper == "" {
		return
	}
	c, err := d.inside(e.Hold)
	if err != nil {
		return
	}
	defer c.Close()
	if _, err := c.Link(holdName); err == nil {
		d.notifyKeeper(ctx, network, e, state.Where{NetNS: e.Hold, IfName: holdName})
	}
}

// notifyArrival tells the keeper that the interface is in its sandbox. It returns an error if
// the interface is not there yet.
func (d *Driver) notifyArrival(ctx context.Context, e *state.Endpoint) error {
	c, link, err := d.sandboxLink(e)
	if err != nil {
		return err
	}
	defer c.Close()
	n, err := d.networkOf(e)
	if err != nil {
		return err
	}
	return callKeeper(ctx, n.list.Name, e, state.Where{NetNS: e.Sandbox, IfName: link.Attrs().Name})
}

// followOnce calls notifyArrival if the interface is in its sandbox with its final name. If there
// is nothing more to wait for, over is true.
func (d *Driver) followOnce(ctx context.Context, endpointID string) (over bool) {
	err := d.enter(ctx, endpointID, func(ctx context.Context, e *state.Endpoint) error {
		var err error
		if e.Phase == state.Joining || e.Phase == state.Joined {
			err = d.notifyArrival(ctx, e)
		}
		if over = err == nil; errors.Is(err, errForeignKeeper) || errors.Is(err, dhcprpc.ErrDial) {
			d.logKeeper(e, err)
			over = true
		}
		return nil
	})
	return over || err != nil
}
