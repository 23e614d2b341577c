// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmplugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/cnm/cnmipam"
	"github.com/patchbay-net/patchbay/daemons/cnm/remote"
	"github.com/patchbay-net/patchbay/internal/endpoint"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/spec"
)

// createEndpoint creates the endpoint at the driver.
func (w *work) createEndpoint(ctx context.Context) error {
	in, err := w.endpointRequest()
	if err != nil {
		return err
	}
	w.at.Created = true
	if err := w.step("create endpoint"); err != nil {
		return err
	}
	out, err := w.askEndpoint(ctx, in)
	var refused *cnm.DriverError
	if errors.As(err, &refused) {
		w.at.Created = false // the driver refused, so there is nothing to delete
	}
	if err != nil {
		return err
	}
	if w.has, err = merge(w.want, out.Interface); err != nil {
		return w.blame(err)
	}
	return w.keep(ctx)
}

// askEndpoint sends CreateEndpoint, and repeats it in two cases. If the driver has forgotten the
// network, askEndpoint creates the network first. If the driver already has the endpoint,
// askEndpoint deletes the endpoint first. Endpoint ids are derived from our names, so an earlier
// ADD of this plugin made that endpoint, and its record was lost.
func (w *work) askEndpoint(ctx context.Context, in *cnm.CreateEndpointRequest) (*cnm.CreateEndpointResponse, error) {
	out, err := w.client.CreateEndpoint(ctx, in)
	switch {
	case cnm.IsMissing(err) && w.createAgain(ctx):
	case cnm.SaysExists(err):
		kernel.Warn(w.r, err)
		lost := w.derived(&remote.DriverState{Owner: w.r.Owner, NetNS: w.r.NetNS})
		if unreached, err := w.endAtDriver(ctx, lost); cmp.Or(unreached, err) != nil {
			return nil, cmp.Or(unreached, err)
		}
	default:
		return out, err
	}
	return w.client.CreateEndpoint(ctx, in)
}

// keep records the addresses that the driver chose. If another container has one of them, keep
// refuses it. keep leaves out addresses that IPAM chose, because IPAM records those itself.
func (w *work) keep(ctx context.Context) error {
	chosen := slices.DeleteFunc([]netip.Prefix{w.has.Address, w.has.AddressIPv6}, func(p netip.Prefix) bool {
		return !p.IsValid() || p == w.want.Address || p == w.want.AddressIPv6
	})
	if len(chosen) == 0 {
		w.at.Interface = w.has
		return nil
	}
	unlock, err := w.state.Lock(ctx, remote.Networks, w.r.Network)
	if err != nil {
		return err
	}
	defer unlock()
	for _, p := range chosen {
		if err := w.state.RefuseUsed(w.r, name, "NetworkDriver.CreateEndpoint", p); err != nil {
			return w.blame(err)
		}
	}
	w.at.Interface = w.has
	return w.state.Write(w.r.Network, name, w.at)
}

// endpointRequest returns the request of CreateEndpoint.
func (w *work) endpointRequest() (*cnm.CreateEndpointRequest, error) {
	if err := w.setWanted(); err != nil {
		return nil, err
	}
	opts, err := w.options(w.conf.Internal)
	if err != nil {
		return nil, err
	}
	for k, v := range w.conf.EndpointOptions {
		if err := opts.Set(k, v); err != nil {
			return nil, err
		}
	}
	if user, err := w.conf.wanted().MAC(w.r); err != nil {
		return nil, err
	} else if user != nil {
		if err := opts.Set(cnm.OptionMAC, []byte(user)); err != nil {
			return nil, err
		}
	}
	return &cnm.CreateEndpointRequest{
		NetworkID: w.at.NetworkID, EndpointID: w.at.EndpointID, Interface: w.want, Options: opts,
	}, nil
}

// options returns the options of the sandbox: its ports. For an internal network there are none
// in CreateEndpoint, as in Docker.
func (w *work) options(none bool) (cnm.Options, error) {
	ports, err := w.conf.ports()
	if err != nil {
		return nil, err
	}
	exposed := []cnm.ExposedPort{}
	if none {
		ports = ports[:0]
	}
	for _, p := range ports {
		exposed = append(exposed, cnm.ExposedPort{Port: p.Port, Proto: p.Proto})
	}
	opts := cnm.Options{}
	return opts, errors.Join(opts.Set(cnm.OptionPortMap, ports), opts.Set(cnm.OptionExposedPorts, exposed))
}

// setWanted fills in the interface to request. Its addresses come from IPAM, or, without IPAM,
// from the caller. Its MAC address is the one that the caller requested, or the one that the IPAM
// driver got.
func (w *work) setWanted() error {
	w.want = new(cnm.Interface)
	mac, err := w.conf.wanted().MAC(w.r)
	if err == nil && mac == nil && w.keeper != nil && w.sentMAC() {
		mac, err = remote.ChosenMAC(w.r)
	}
	if err != nil {
		return err
	}
	w.want.MacAddress = mac.String() // otherwise the driver chooses
	if w.ipam != nil {
		for _, ip := range w.ipam.IPs {
			w.give(ip.Address)
		}
		return nil
	}
	ips, err := w.conf.wanted().IPs(w.r)
	if err != nil {
		return err
	}
	for _, ip := range ips {
		if ip.Bits < 0 {
			return spec.Invalid("requested IP address %s needs a prefix length where there is no IPAM plugin", ip.Addr)
		}
		if !w.give(netip.PrefixFrom(ip.Addr, ip.Bits)) {
			return spec.Invalid("requested IP address %s is the second of its family: an endpoint has only one of each", ip.Addr)
		}
	}
	return nil
}

// sentMAC reports whether the IPAM driver required a MAC address, and so got one.
func (w *work) sentMAC() bool {
	s, err := remote.Load[cnmipam.State](w.state, remote.Pools, w.r.Network)
	return err == nil && s != nil && s.RequiresMAC
}

// give adds an address to the request. An endpoint has one address of each family; further
// addresses are set only on the link.
func (w *work) give(p netip.Prefix) bool {
	switch {
	case p.Addr().Is4() && !w.want.Address.IsValid():
		w.want.Address = p
	case p.Addr().Is6() && !w.want.AddressIPv6.IsValid():
		w.want.AddressIPv6 = p
	default:
		return false
	}
	return true
}

// merge adds what the driver chose to the interface that was requested. If the driver changed a
// requested value, merge returns an error.
func merge(want, got *cnm.Interface) (*cnm.Interface, error) {
	out := *want
	if got == nil {
		return &out, nil
	}
	const method = "NetworkDriver.CreateEndpoint"
	for _, f := range []struct{ out, got *netip.Prefix }{{&out.Address, &got.Address}, {&out.AddressIPv6, &got.AddressIPv6}} {
		switch {
		case !f.got.IsValid():
		case f.out.IsValid() && *f.out != *f.got:
			return nil, bad(method, "driver modified interface address: %s to %s", *f.out, *f.got)
		default:
			*f.out = *f.got
		}
	}
	switch {
	case got.MacAddress == "":
	case out.MacAddress != "" && !sameMAC(out.MacAddress, got.MacAddress):
		return nil, bad(method, "driver modified interface MAC address: %s to %s", out.MacAddress, got.MacAddress)
	default:
		out.MacAddress = got.MacAddress
	}
	if want.MacAddress == "" && got.MacAddress != "" && !ethernet(got.MacAddress) {
		return nil, bad(method, "MAC address %.40q", got.MacAddress)
	}
	if out.Address.IsValid() && !out.Address.Addr().Is4() || out.AddressIPv6.IsValid() && !out.AddressIPv6.Addr().Is6() {
		return nil, bad(method, "addresses %s and %s", out.Address, out.AddressIPv6)
	}
	return &out, nil
}

// ethernet reports whether a text is a MAC address that an interface can have.
func ethernet(s string) bool {
	mac, err := net.ParseMAC(s)
	return err == nil && len(mac) == 6 && endpoint.ValidateMAC(mac) == nil
}

func sameMAC(a, b string) bool {
	x, err := net.ParseMAC(a)
	if err != nil {
		return false
	}
	y, err := net.ParseMAC(b)
	return err == nil && x.String() == y.String()
}

// attach joins the endpoint to the container, and configures the link that the driver names. A
// driver that names no link has configured the container itself, or needs no link.
func (w *work) attach(ctx context.Context) error {
	if err := w.joinEndpoint(ctx); err != nil {
		return err
	}
	if w.join.InterfaceName == nil || w.join.InterfaceName.SrcName == "" {
		return nil
	}
	return w.moveLink(ctx)
}

func (w *work) joinEndpoint(ctx context.Context) error {
	opts, err := w.options(false)
	if err != nil {
		return err
	}
	w.at.Joined = true
	if err := w.step("join"); err != nil {
		return err
	}
	w.join, err = w.client.Join(ctx, &cnm.JoinRequest{
		NetworkID: w.at.NetworkID, EndpointID: w.at.EndpointID, SandboxKey: w.r.NetNS, Options: opts,
	})
	if err != nil {
		return err
	}
	if n := w.join.InterfaceName; n != nil && n.SrcName != "" && spec.ValidateIfName(n.SrcName) != nil {
		return w.blame(bad("NetworkDriver.Join", "interface %.80q", n.SrcName))
	}
	return w.blame(possible(w.join))
}

// blame names the driver in the error for an answer that violates the protocol.
func (w *work) blame(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("driver %s: %w", w.client.Endpoint(), err)
}

// possible refuses gateways and routes that the kernel would refuse. Its error names the driver,
// which the kernel's error would not.
func possible(j *cnm.JoinResponse) error {
	const method = "NetworkDriver.Join"
	if j.Gateway.IsValid() && !j.Gateway.Is4() || j.GatewayIPv6.IsValid() && !j.GatewayIPv6.Is6() {
		return bad(method, "gateways %s and %s", j.Gateway, j.GatewayIPv6)
	}
	for _, r := range j.StaticRoutes {
		byHop := r.NextHop.IsValid() && r.NextHop.Is4() == r.Destination.Addr().Is4()
		if !r.Destination.IsValid() || r.RouteType == cnm.NextHop && !byHop {
			return bad(method, "static route to %s of type %d by %s", r.Destination, r.RouteType, r.NextHop)
		}
	}
	return nil
}
