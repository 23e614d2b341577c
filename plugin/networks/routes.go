// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package networks

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/npwg"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// route gives the pod the default routes that its annotation asks for: other ones of the family go, in the kernel and in the results,
// because a CHECK looks for what a result has.
func (w *work) route(ctx context.Context, env *netstate.Env) error {
	var state netstate.State
	for _, g := range w.gateways {
		only, err := w.only(g)
		if err != nil {
			return err
		}
		if only == nil {
			continue
		}
		state = append(state, *only)
		w.forgetRoutes(g)
	}
	return kernel.Of(w.request).Apply(ctx, w.request, env, state)
}

// only returns the object for a gateway. An annotation with an empty list keeps the route that the network's plugins made; if they
// made none, the pod keeps its own.
func (w *work) only(g npwg.Gateway) (*onlyDefault, error) {
	dst := spec.DefaultDst(!g.IPv6)
	if !g.Addr.IsValid() {
		result, err := w.resultOf(g.Interface)
		if err != nil || !slices.ContainsFunc(result.Routes, func(rt spec.Route) bool { return rt.Dst == dst }) {
			return nil, err
		}
	}
	return &onlyDefault{link: g.Interface, dst: dst, gateway: g.Addr}, nil
}

// resultOf returns the result of the attachment with this interface.
func (w *work) resultOf(ifName string) (*spec.Result, error) {
	for i := range w.plan.Interfaces {
		if a := &w.plan.Interfaces[i]; a.IfName == ifName && len(a.Result) > 0 {
			return spec.ParseResult(a.Result, a.CNIVersion)
		}
	}
	return new(spec.Result), nil
}

// forgetRoutes removes the default routes of a family from the results of the other networks. If the annotation names a gateway,
// the network's own result has it.
func (w *work) forgetRoutes(g npwg.Gateway) {
	dst := spec.DefaultDst(!g.IPv6)
	others := func(rt spec.Route) bool { return rt.Dst == dst }
	prev := w.request.Prev()
	prev.Routes = slices.DeleteFunc(prev.Routes, others)
	for i := range w.plan.Interfaces {
		a := &w.plan.Interfaces[i]
		result, err := w.resultOf(a.IfName)
		if err != nil || len(a.Result) == 0 || a.IfName == g.Interface && !g.Addr.IsValid() {
			continue
		}
		result.Routes = slices.DeleteFunc(result.Routes, others)
		if a.IfName == g.Interface {
			result.Routes = append(result.Routes, spec.Route{Dst: dst, GW: g.Addr})
		}
		if data, err := result.Encode(a.CNIVersion); err == nil {
			a.Result = data
		}
	}
}

// checkRoutes returns an error if the pod's default route is not that which its annotation asks for.
func checkRoutes(r *plugin.Request, plan *npwg.Plan) error {
	w := &work{request: r, plan: plan}
	var state netstate.State
	for i := range plan.Interfaces {
		a := &plan.Interfaces[i]
		for _, addr := range a.Ask.DefaultRoute {
			only, err := w.only(npwg.Gateway{Interface: a.IfName, Addr: addr, IPv6: addr.Is6()})
			if err != nil {
				return err
			}
			state = append(state, *only)
		}
	}
	if len(state) == 0 {
		return nil
	}
	env, err := kernel.Of(r).Env(r)
	if err != nil {
		return err
	}
	return kernel.Check(context.Background(), env, state)
}

// onlyDefault is the only default route of a family in the pod's main table: through one link, by a gateway, or if that is not valid
// as the link's plugins made it.
type onlyDefault struct {
	link    string
	dst     netip.Prefix
	gateway netip.Addr
}

// String returns the ip command.
func (o onlyDefault) String() string {
	if !o.gateway.IsValid() {
		return fmt.Sprintf("%s: ip route del %s # except through %s", netstate.Sandbox, o.dst, o.link)
	}
	return fmt.Sprintf("%s: ip route replace %s via %s dev %s # and no other one", netstate.Sandbox, o.dst, o.gateway, o.link)
}

// Ensure deletes the other default routes and adds the wanted one. A route that another program deletes meanwhile is no error.
func (o onlyDefault) Ensure(_ context.Context, env *netstate.Env) (netstate.Undo, error) {
	others, mine, err := o.compare(env.Sandbox)
	if err != nil {
		return nil, err
	}
	var back []func() error
	undo := func(context.Context) error {
		var errs []error
		for _, fn := range slices.Backward(back) {
			errs = append(errs, fn())
		}
		return errors.Join(errs...)
	}
	for _, rt := range others {
		if err := env.Sandbox.DeleteRoute(rt); err != nil && !nl.IsNotFound(err) {
			return nil, errors.Join(fmt.Errorf("delete route %s of link %d: %w", o.dst, rt.Link, err), undo(nil))
		}
		back = append(back, func() error { return env.Sandbox.AddRoute(rt) })
	}
	if mine == nil {
		return undo, nil
	}
	if err := env.Sandbox.AddRoute(*mine); err != nil {
		return nil, errors.Join(fmt.Errorf("add route %s via %s through %s: %w", o.dst, o.gateway, o.link, err), undo(nil))
	}
	back = append(back, func() error { return plugin.IgnoreGone(env.Sandbox.DeleteRoute(*mine), unix.ESRCH) })
	return undo, nil
}

// Diff says which default route is missing, or is one too many.
func (o onlyDefault) Diff(_ context.Context, env *netstate.Env) (string, error) {
	others, mine, err := o.compare(env.Sandbox)
	switch {
	case err != nil:
		return "", err
	case mine != nil:
		return fmt.Sprintf("the default route via %s through %s is missing", o.gateway, o.link), nil
	case len(others) > 0:
		return fmt.Sprintf("there is another default route than that through %s", o.link), nil
	}
	return "", nil
}

// compare returns the default routes that must go, and the one that must be added, or nil.
func (o onlyDefault) compare(conn *nl.Conn) (others []nl.Route, mine *nl.Route, err error) {
	link, err := conn.Link(o.link)
	if err != nil {
		return nil, nil, fmt.Errorf("find %s: %w", o.link, err)
	}
	links, err := conn.LinkList()
	if err != nil {
		return nil, nil, fmt.Errorf("list the pod's links: %w", err)
	}
	want := link.Attrs().Index
	if o.gateway.IsValid() {
		mine = &nl.Route{Link: want, Dst: o.dst, Gateway: o.gateway}
	}
	for _, l := range links {
		routes, err := conn.LinkRoutes(l.Attrs().Index, unix.RT_TABLE_MAIN)
		if err != nil {
			return nil, nil, err
		}
		for _, rt := range routes {
			got, ok := defaultOf(rt, o.dst)
			switch {
			case !ok:
			case got.Link != want, o.gateway.IsValid() && got.Gateway != o.gateway:
				others = append(others, got)
			default:
				mine = nil
			}
		}
	}
	return others, mine, nil
}

// defaultOf returns a route if its destination is dst, a default route.
func defaultOf(rt netlink.Route, dst netip.Prefix) (nl.Route, bool) {
	family := netlink.FAMILY_V6
	if dst.Addr().Is4() {
		family = netlink.FAMILY_V4
	}
	if ones := 0; rt.Dst != nil {
		if ones, _ = rt.Dst.Mask.Size(); ones != 0 {
			return nl.Route{}, false
		}
	}
	gw, _ := netip.AddrFromSlice(rt.Gw)
	return nl.Route{Link: rt.LinkIndex, Dst: dst, Gateway: gw.Unmap(), Priority: rt.Priority, Scope: uint8(rt.Scope)}, rt.Family == family
}
