// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmplugin

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/cnm/remote"
	"github.com/patchbay-net/patchbay/internal/endpoint"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/prefix"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// check compares the container with the previous result. It also asks whether the driver still
// knows the endpoint.
func check(ctx context.Context, r *plugin.Request) error {
	ipam := r.IPAM(ctx, r.Verb)
	return spec.Join(ipam, checkOwn(ctx, r))
}

// checkOwn does the work of CHECK, but does not call the IPAM plugin.
func checkOwn(ctx context.Context, r *plugin.Request) error {
	conf, err := decode(r)
	if err != nil {
		return err
	}
	if r.Prev() == nil {
		return spec.Invalid("cnm: Required prevResult missing")
	}
	w := &work{r: r, conf: conf, state: remote.Of(r)}
	if w.at, err = w.state.Read(r, name); err != nil {
		return err
	}
	if w.at == nil || w.at.Ended {
		return spec.Errorf(spec.CodeInternal, "cnm: no endpoint of the driver is known for container %s", r.ContainerID)
	}
	if w.env, err = kernel.Of(r).Env(r); err != nil {
		return err
	}
	state, err := w.expected()
	if err != nil {
		return err
	}
	if err := kernel.Check(ctx, w.env, state); err != nil {
		return err
	}
	return w.checkDriver(ctx)
}

// expected returns the state that the container's interfaces have according to the previous result.
func (w *work) expected() (s netstate.State, err error) {
	prev := w.r.Prev()
	for n, i := range prev.Interfaces {
		if i.Sandbox == "" || w.at.Link != nil && i.Name != w.r.IfName {
			continue // the interface is on the host, or another plugin made it
		}
		h := handover{To: i.Name}
		if i.Mac != "" {
			if h.MAC, err = net.ParseMAC(i.Mac); err != nil {
				return nil, spec.Errorf(spec.CodeDecoding, "interface %s in prevResult: %w", i.Name, err)
			}
		}
		var ips []spec.IPConfig
		for _, ip := range prev.IPs {
			if ip.Interface == nil || *ip.Interface == n {
				ips = append(ips, ip)
			}
		}
		s = append(s, h)
		s = append(s, configure(i.Name, ips, prev.Routes)...)
	}
	if len(s) == 0 && w.at.Link != nil {
		return nil, spec.Errorf(spec.CodeInvalidConfig, "prevResult has no interface %s of the container", w.r.IfName)
	}
	return s, nil
}

func (w *work) checkDriver(ctx context.Context) error {
	c, err := w.conf.Recorded(w.r, w.at.Driver)
	if err != nil {
		return err
	}
	if _, err := c.EndpointOperInfo(ctx, w.id()); err != nil && !errors.Is(err, cnm.ErrNotImplemented) {
		return remote.Error(err)
	}
	return nil
}

// status reports whether an ADD could work now: the driver and the IPAM plugin must answer.
func status(ctx context.Context, r *plugin.Request) error {
	conf, err := decode(r)
	if err != nil {
		return err
	}
	w := &work{r: r, conf: conf}
	if err := w.greet(ctx); err != nil {
		return spec.Errorf(spec.CodeNotAvailable, "%w", err)
	}
	return r.IPAM(ctx, r.Verb)
}

// compile computes the result for an interface of the container from the answers of the driver
// and of IPAM. It changes nothing. In a dry run the driver's answers are not known, and compile
// returns nil.
func (w *work) compile() *spec.Result {
	result := &spec.Result{
		Interfaces: []spec.Interface{{Name: w.r.IfName, Sandbox: w.r.NetNS}},
		DNS:        w.conf.DNS,
	}
	var given spec.Result
	if w.ipam != nil {
		given = *w.ipam
		result.DNS = endpoint.DNS(w.conf.DNS, w.ipam.DNS)
	}
	result.IPs = given.IPs
	if w.join != nil {
		result.IPs = w.ips()
		result.Routes = w.routes(result.IPs, given.Routes)
	}
	for i := range result.IPs {
		result.IPs[i].Interface = new(int)
	}
	return result
}

// ips returns the addresses that IPAM gave, or else those that the driver gave. The gateway is
// the one in the driver's answer to Join, or else IPAM's.
func (w *work) ips() (list []spec.IPConfig) {
	if w.ipam != nil {
		list = append(list, w.ipam.IPs...)
	}
	for _, p := range []netip.Prefix{w.has.Address, w.has.AddressIPv6} {
		known := slices.ContainsFunc(list, func(ip spec.IPConfig) bool { return ip.Address == p })
		if p.IsValid() && !known {
			list = append(list, spec.IPConfig{Address: p})
		}
	}
	for i := range list {
		if gw := w.gateway(list[i].Address.Addr().Is4()); gw.IsValid() {
			list[i].Gateway = gw
		}
		if w.conf.Internal {
			list[i].Gateway = netip.Addr{}
		}
	}
	return list
}

// gateway returns the driver's gateway for a family.
func (w *work) gateway(want4 bool) netip.Addr {
	gw := w.join.GatewayIPv6
	if want4 {
		gw = w.join.Gateway
	}
	if w.conf.Internal || gw.IsValid() && gw.IsUnspecified() {
		return netip.Addr{}
	}
	return gw
}

// routes returns four groups of routes, in this order. First come the routes on the link, with one
// to a gateway outside the container's subnets. The driver's routes follow, then the default route.
// Last come IPAM's routes to destinations that have no route yet.
func (w *work) routes(ips []spec.IPConfig, more []spec.Route) (list []spec.Route) {
	add := func(r spec.Route) {
		known := slices.ContainsFunc(list, func(o spec.Route) bool { return o.Dst == r.Dst })
		if !known && (!w.conf.Internal || r.Dst.Bits() > 0) {
			list = append(list, r)
		}
	}
	for _, r := range w.join.StaticRoutes {
		own := func(ip spec.IPConfig) bool { return ip.Address.Masked() == r.Destination.Masked() }
		if r.RouteType == cnm.Connected && !slices.ContainsFunc(ips, own) {
			add(onLink(r.Destination.Masked()))
		}
	}
	for _, r := range w.join.StaticRoutes {
		if r.RouteType != cnm.Connected {
			add(spec.Route{Dst: r.Destination.Masked(), GW: r.NextHop})
		}
	}
	for _, all := range []netip.Prefix{spec.DefaultDst(true), spec.DefaultDst(false)} {
		if gw := w.gateway(all.Addr().Is4()); gw.IsValid() {
			if !reaches(ips, list, gw) {
				list = slices.Insert(list, 0, onLink(netip.PrefixFrom(gw, gw.BitLen())))
			}
			add(spec.Route{Dst: all, GW: gw})
		}
	}
	for _, r := range more {
		if !r.GW.IsValid() {
			r.GW = gatewayOf(ips, r.Dst.Addr().Is4())
		}
		add(r)
	}
	return list
}

func onLink(dst netip.Prefix) spec.Route {
	scope := unix.RT_SCOPE_LINK
	return spec.Route{Dst: dst, Scope: &scope}
}

// reaches reports whether the container reaches an address directly on its link.
func reaches(ips []spec.IPConfig, routes []spec.Route, a netip.Addr) bool {
	if prefix.IsLinkLocal(a) {
		return true
	}
	return slices.ContainsFunc(ips, func(ip spec.IPConfig) bool { return ip.Address.Masked().Contains(a) }) ||
		slices.ContainsFunc(routes, func(r spec.Route) bool { return r.Scope != nil && r.Dst.Contains(a) })
}

func gatewayOf(ips []spec.IPConfig, want4 bool) netip.Addr {
	for _, ip := range ips {
		if ip.Gateway.IsValid() && ip.Gateway.Is4() == want4 {
			return ip.Gateway
		}
	}
	return netip.Addr{}
}

// configure returns the addresses and routes that the link of a result must have. ADD sets them,
// and CHECK compares with them.
func configure(ifName string, ips []spec.IPConfig, routes []spec.Route) netstate.State {
	result := &spec.Result{Routes: routes}
	for _, ip := range ips { // without the gateway: routes without a gateway must not get this one
		result.IPs = append(result.IPs, spec.IPConfig{Address: ip.Address})
	}
	return endpoint.Configure(ifName, result)
}
