// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package loopback is the plugin `loopback`. The plugin sets a container's lo up. The plugin
// ignores CNI_IFNAME and stores nothing.
package loopback

import (
	"context"
	"net"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

const lo = "lo"

// Plugin has the name, the versions and the functions of this plugin.
var Plugin = plugin.Plugin{
	Name:  "loopback",
	Kind:  plugin.Interface,
	About: "sets a container's loopback interface up",
	Conf:  func() any { return new(struct{}) },

	Add:   add,
	Del:   del,
	Check: check,
}

// compile returns the desired state, which is the same for every configuration.
func compile() netstate.State { return netstate.State{netstate.Up{Where: netstate.Sandbox, Link: lo}} }

func add(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
	k := kernel.Of(r)
	env, err := k.Env(r)
	if err != nil {
		return nil, err
	}
	if err := k.Apply(ctx, r, env, compile()); err != nil {
		return nil, err
	}
	ips, err := addresses(env)
	if err != nil || r.Prev() != nil {
		return r.Prev(), err
	}
	return &spec.Result{
		Interfaces: []spec.Interface{{Name: lo, Mac: "00:00:00:00:00:00", Sandbox: r.NetNS}},
		IPs:        ips,
	}, nil
}

// addresses returns the first address of each family. addresses returns an error for an
// address that does not belong on lo.
func addresses(env *netstate.Env) (ips []spec.IPConfig, err error) {
	link, err := env.Link(netstate.Sandbox, lo)
	if err != nil {
		return nil, err
	}
	addrs, err := env.Sandbox.Addrs(link.Attrs().Index)
	if err != nil {
		return nil, err
	}
	for _, v4 := range []bool{true, false} {
		first := true
		for _, a := range addrs {
			if a.Prefix.Addr().Is4() != v4 {
				continue
			}
			if !a.Prefix.Addr().IsLoopback() {
				return nil, spec.Errorf(spec.CodeInternal, "loopback interface found with non-loopback address %q", a.Prefix.Addr())
			}
			if first {
				ips = append(ips, spec.IPConfig{Interface: new(int), Address: a.Prefix})
			}
			first = false
		}
	}
	return ips, nil
}

func del(_ context.Context, r *plugin.Request) error {
	env, err := kernel.Of(r).DelEnv(r)
	if err != nil || env.Sandbox == nil {
		return err
	}
	link, err := env.Link(netstate.Sandbox, lo)
	if err != nil {
		return err
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		return nil
	}
	return env.Sandbox.LinkSetDown(link)
}

func check(_ context.Context, r *plugin.Request) error {
	env, err := kernel.Of(r).Env(r)
	if err != nil {
		return err
	}
	link, err := env.Link(netstate.Sandbox, lo)
	if err != nil {
		return err
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		return spec.Errorf(spec.CodeInternal, "loopback interface is down")
	}
	return nil
}
