// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/docker/state"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/netns"
)

// CreateEndpoint implements cnm.NetworkDriver. The first plugin makes the interface in a
// holding namespace. If CreateEndpoint fails, Docker does not send DeleteEndpoint, so it must
// undo everything itself.
func (d *Driver) CreateEndpoint(ctx context.Context, in *cnm.CreateEndpointRequest) (*cnm.CreateEndpointResponse, error) {
	ctx, cancel := d.limit(ctx)
	defer cancel()
	release, err := d.locks.lock(ctx, in.EndpointID)
	if err != nil {
		return nil, err
	}
	defer release()
	n, err := d.network(in.NetworkID)
	if err != nil {
		return nil, err
	}
	switch e, err := d.state.Endpoints.Get(in.EndpointID); {
	case err == nil && e.Phase == state.Created && e.Network == in.NetworkID:
		return answer(e), nil // Docker repeats the call because the answer was lost
	case err == nil:
		return nil, fmt.Errorf("endpoint %.12s already exists", in.EndpointID)
	case !errors.Is(err, state.ErrUnknown):
		return nil, err
	}
	config, err := d.refresh(ctx, n, in.Interface)
	if err != nil {
		return nil, err
	}
	e, err := d.newEndpoint(n, in, config)
	if err != nil {
		return nil, err
	}
	if err := d.create(ctx, n, e); err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTime)
		defer cancel()
		return nil, errors.Join(err, d.remove(ctx, e, unbind)) // the collector removes what is left here
	}
	return answer(e), nil
}

// newEndpoint writes a new endpoint to the state before any other work.
func (d *Driver) newEndpoint(n *network, in *cnm.CreateEndpointRequest, config json.RawMessage) (*state.Endpoint, error) {
	if !isID(in.EndpointID) { // the id becomes part of link names and file names
		return nil, fmt.Errorf("endpoint %.140q: its id is not %d hexadecimal digits", in.EndpointID, idLen)
	}
	e := &state.Endpoint{
		ID: in.EndpointID, Network: in.NetworkID, Config: config, Boot: d.boot,
		Phase: state.Creating, Hold: d.holdPath(in.EndpointID), Args: maps.Clone(n.args), Keeper: keeperOf(n.list),
	}
	if n.dns {
		e.DNS = new(state.Resolv)
	}
	if in.Interface != nil {
		e.Wanted = *in.Interface
	}
	if err := readEndpointOptions(e, in.Options); err != nil {
		return nil, err
	}
	return e, d.save(e)
}

func readEndpointOptions(e *state.Endpoint, o cnm.Options) error {
	if _, err := o.Get(cnm.OptionPortMap, &e.Asked); err != nil {
		return err
	}
	if _, err := o.Get(cnm.OptionIfName, &e.IfName); err != nil {
		return err
	}
	for key := range o {
		if strings.HasPrefix(key, "cni.") && key != optArgs {
			return fmt.Errorf("driver option %q is not one of an endpoint (docs/docker.md)", key)
		}
	}
	var args string
	ok, err := o.Get(optArgs, &args)
	if err != nil || !ok {
		return err
	}
	more, err := parseArgs(args)
	if err != nil {
		return err
	}
	if e.Args == nil {
		e.Args = map[string]string{}
	}
	maps.Copy(e.Args, more)
	return nil
}

func (d *Driver) create(ctx context.Context, n *network, e *state.Endpoint) error {
	if len(e.Asked) > 0 && !n.portmap && !publishes(n.list) {
		return fmt.Errorf("-p: no plugin of network %s publishes ports, and option %s is off", n.list.Name, optPortmap)
	}
	if err := d.makeHold(e.Hold); err != nil {
		return err
	}
	list := n.part(hold)
	section, err := d.leased(ctx, n, e)
	if err != nil {
		return err
	}
	if section != nil { // our IPAM driver has given the address, so the plugin must not ask for another one
		e.Leased = true
		if list, err = with(list, "ipam", section, theFirst); err != nil {
			return err
		}
	}
	if e.Result, err = d.run[hold].Add(ctx, list, d.attachment(e, state.Where{NetNS: e.Hold, IfName: holdName})); err != nil {
		return err
	}
	if err := d.checkInternal(n, e); err != nil {
		return err
	}
	if n.dns && len(n.part(post).Plugins) == 0 && len(e.Result.DNS.Nameservers) == 0 {
		return fmt.Errorf("network %s: %s=replace: %w", n.list.Name, optDNS, errNoDNS)
	}
	if err := d.recordLink(e); err != nil {
		return err
	}
	if err := errors.Join(wantedMet(e), n.checkFamily(e)); err != nil {
		return err
	}
	e.Phase = state.Created
	return d.save(e)
}

// recordLink records the state of the interface in the holding namespace.
func (d *Driver) recordLink(e *state.Endpoint) error {
	c, err := d.inside(e.Hold)
	if err != nil {
		return err
	}
	defer c.Close()
	link, err := c.Link(holdName)
	if err != nil {
		return fmt.Errorf("the first plugin of a network for Docker must make the interface, and this one made no %s: %w", holdName, err)
	}
	if err := setMAC(c, link, e.Wanted.MacAddress); err != nil {
		return err
	}
	e.Kernel, err = snapshot(c, link)
	return err
}

// setMAC gives an interface the MAC address that Docker has recorded. Some plugins, such as
// ptp, cannot do this, and libnetwork would set the address only in the sandbox.
func setMAC(c *nl.Conn, link netlink.Link, wanted string) error {
	if wanted == "" || strings.EqualFold(wanted, link.Attrs().HardwareAddr.String()) {
		return nil
	}
	mac, err := net.ParseMAC(wanted)
	if err != nil {
		return fmt.Errorf("--mac-address: %w", err)
	}
	if err := c.SetLink(link.Attrs().Index, nl.LinkChange{MAC: mac}); err != nil {
		return fmt.Errorf("--mac-address %s: %w", mac, err)
	}
	link.Attrs().HardwareAddr = mac
	return nil
}

// wantedMet returns an error if the interface lacks an address that Docker has recorded. The
// address comes from --ip or from another IPAM driver.
func wantedMet(e *state.Endpoint) error {
	for _, want := range []netip.Prefix{e.Wanted.Address, e.Wanted.AddressIPv6} {
		has := slices.ContainsFunc(e.Kernel.Addrs, func(a netip.Prefix) bool { return a.Addr() == want.Addr() })
		if want.IsValid() && !has {
			return fmt.Errorf("the network's IPAM plugin gave %v instead of %s: use --ipam-driver patchbay or null", e.Kernel.Addrs, want.Addr())
		}
	}
	return nil
}

// answer returns the parts of the interface that Docker does not know yet.
func answer(e *state.Endpoint) *cnm.CreateEndpointResponse {
	v4, v6 := addresses(e.Kernel)
	out := &cnm.Interface{MacAddress: e.Kernel.MAC}
	if !e.Wanted.Address.IsValid() {
		out.Address = v4
	}
	if !e.Wanted.AddressIPv6.IsValid() {
		out.AddressIPv6 = v6
	}
	if e.Wanted.MacAddress != "" {
		out.MacAddress = ""
	}
	return &cnm.CreateEndpointResponse{Interface: out}
}

// attachment returns the attachment for which a part's plugins are called.
func (d *Driver) attachment(e *state.Endpoint, at state.Where) chain.Attachment {
	a := chain.Attachment{
		ContainerID: e.ID, NetNS: at.NetNS, IfName: at.IfName,
		Args: [][2]string{{"IgnoreUnknown", "1"}}, Capabilities: map[string]any{},
	}
	var ips []string
	for _, p := range []netip.Prefix{e.Wanted.Address, e.Wanted.AddressIPv6} {
		if p.IsValid() && !e.Leased {
			ips = append(ips, p.String())
		}
	}
	if len(ips) > 0 {
		a.Capabilities["ips"] = ips
		a.Args = append(a.Args, [2]string{"IP", ips[0]}) // the plugin static needs the prefix length, and host-local accepts it
	}
	if e.Wanted.MacAddress != "" {
		a.Capabilities["mac"] = e.Wanted.MacAddress
		a.Args = append(a.Args, [2]string{"MAC", e.Wanted.MacAddress})
	}
	for _, k := range slices.Sorted(maps.Keys(e.Args)) {
		a.Args = append(a.Args, [2]string{k, e.Args[k]})
	}
	if at.NetNS != e.Hold { // while the interface is in the holding namespace, the container is not known
		a.Args = append(a.Args, containerArgs(e)...)
	}
	return a
}

// rollbackTime limits the undo of a failed call. The chain has this time for its undo, and after
// that the driver has it again. A call may have used all its time, and both undos may take long.
// Then the server (Handler.Timeout) answers Docker before the second undo has ended.
const rollbackTime = 10 * time.Second

// DeleteEndpoint implements cnm.NetworkDriver. Docker calls it only once, even if it fails. So an
// object that cannot be removed now stays in the state for the collector.
func (d *Driver) DeleteEndpoint(ctx context.Context, in *cnm.EndpointRequest) error {
	return d.enterIfExists(ctx, in.EndpointID, func(ctx context.Context, e *state.Endpoint) error { return d.remove(ctx, e, unbind) })
}

// remove undoes everything of an endpoint in reverse order. It can continue the work of a call
// that was killed.
func (d *Driver) remove(ctx context.Context, e *state.Endpoint, end leaseEnd) error {
	n, err := d.networkOf(e)
	if errors.Is(err, state.ErrUnknown) {
		return d.removeByCache(ctx, e)
	}
	if err != nil {
		return err
	}
	e.Phase = state.Deleting
	if err := d.save(e); err != nil {
		return err
	}
	errs := []error{d.leave(ctx, n, e), d.moveBack(e)}
	if e.PostAt.NetNS == e.Hold && e.Post != "" {
		errs = append(errs, d.del(ctx, n, e, post), d.moveBack(e))
	}
	d.notifyReturn(ctx, n.list.Name, e)
	errs = append(errs, d.undoHold(ctx, n, e))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("endpoint %.12s is kept until it can be removed: %w", e.ID, err)
	}
	if err := netns.Delete(e.Hold); err != nil {
		return err
	}
	if err := d.endLease(ctx, leaseID(n.list.Name, e.Wanted.MacAddress), e.ID, end); err != nil {
		return err
	}
	return d.state.Endpoints.Drop(e.ID)
}

// undoHold calls DEL of the first plugin. After a reboot, the holding namespace is gone with
// everything in it. Then only addresses and firewall rules are left to remove.
func (d *Driver) undoHold(ctx context.Context, n *network, e *state.Endpoint) error {
	at := state.Where{NetNS: e.Hold, IfName: holdName}
	switch _, exists, err := live(e.Hold); {
	case err != nil:
		return err
	case !exists:
		at.NetNS = ""
	}
	list := n.part(hold)
	if l, err := d.state.Leases.Get(leaseID(n.list.Name, e.Wanted.MacAddress)); err == nil && l.Endpoint == e.ID && l.Result != nil {
		if with, err := with(list, "ipam", staticOf(l), theFirst); err == nil {
			list = with
		}
	}
	return d.run[hold].Del(ctx, list, d.attachment(e, at))
}

// removeByCache removes an endpoint if the file of its network is lost. It uses the cached
// results, which include their configurations. `patchbay gc` removes an endpoint without a
// cached result.
func (d *Driver) removeByCache(ctx context.Context, e *state.Endpoint) error {
	d.opts.Log("endpoint %.12s: its network's state is lost: removing it with its cached results", e.ID)
	errs := []error{d.delCached(ctx, ports, e), d.delCached(ctx, post, e), d.moveBack(e), d.delCached(ctx, hold, e)}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("endpoint %.12s is kept until it can be removed: %w", e.ID, err)
	}
	if err := netns.Delete(e.Hold); err != nil {
		return err
	}
	return d.state.Endpoints.Drop(e.ID)
}

func (d *Driver) delCached(ctx context.Context, p part, e *state.Endpoint) error {
	all, err := d.run[p].Attachments(e.ID)
	errs := []error{err}
	for i := range all {
		a := all[i].Attachment
		at, err := dropDeletedNetNS(e, state.Where{NetNS: a.NetNS})
		a.NetNS = at.NetNS
		errs = append(errs, err, d.run[p].DelCached(ctx, all[i].Network, a))
	}
	return errors.Join(errs...)
}
