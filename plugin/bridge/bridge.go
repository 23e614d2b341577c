// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package bridge is the plugin `bridge`. The plugin connects a container to a bridge of the
// host with a veth pair. If the bridge is the gateway, the plugin gives it an address in each
// of the container's subnets.
//
// The bridge, its addresses and forwarding belong to the network. The first ADD that needs them
// makes them, and no DEL removes them. The veth pair belongs to the attachment.
package bridge

import (
	"context"
	"errors"
	"slices"

	"github.com/patchbay-net/patchbay/internal/endpoint"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

const name = "bridge"

// Plugin has the name, the versions and the functions of this plugin.
var Plugin = plugin.Plugin{
	Name:         name,
	Kind:         plugin.Interface,
	About:        "joins a container to a bridge on the host",
	Layer2:       true,
	Capabilities: []string{"mac"},
	Conf:         func() any { return &Conf{Bridge: defaultBridge} },
	NoPrev:       plugin.NoPrev{Check: "Required prevResult missing"},
	Delegates:    true,
	Marked:       true,

	Validate: validate,
	Warnings: doubts,

	Add:    add,
	Del:    endpoint.Detach,
	Check:  check,
	GC:     endpoint.Collect,
	Status: status,
}

// adding is an ADD with what it has opened.
type adding struct {
	input
	k   *kernel.Kernel
	env *netstate.Env
}

func add(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
	a, err := prepare(ctx, r)
	if err != nil {
		return nil, err
	}
	first := link(a.input)
	todo := first
	if endpoint.IPAMNeedsLink(a.conf.IPAM.Type) {
		if err := apply(ctx, r, a, first, first); err != nil {
			return nil, err
		}
		todo = nil
	}
	if a.conf.IPAM.Type != "" {
		if a.ipam, err = r.IPAMAdd(ctx); err != nil {
			return nil, err
		}
		if err := endpoint.ValidateAnswer(a.conf.MTU, a.ipam); err != nil {
			return nil, err
		}
	}
	then, result, err := configuration(a.input)
	if err != nil {
		return nil, err
	}
	if err := a.conf.refuseHostAddrs(a.env, result.IPs); err != nil {
		return nil, err
	}
	then = append(then, endpoint.Egress(r, then)...)
	if err := apply(ctx, r, a, slices.Concat(first, then), slices.Concat(todo, then)); err != nil || r.Session.Dry != nil {
		return result, err
	}
	return result, describe(a.env, a.conf, result)
}

// prepare reads the state of the host. prepare refuses a configuration that cannot work,
// before anything is changed.
func prepare(ctx context.Context, r *plugin.Request) (*adding, error) {
	a := &adding{input: inputOf(r), k: kernel.Of(r)}
	var err error
	if a.env, err = a.k.Env(r); err != nil {
		return nil, err
	}
	if err := a.conf.fits(a.k); err != nil {
		return nil, err
	}
	a.env.First = a.first
	macs := endpoint.AddressesOf(a.k, r.Owner)
	if a.pair, err = endpoint.New(ctx, r, a.env, macs); err != nil {
		return nil, err
	}
	if a.conf.mac != nil {
		a.pair.MAC = a.conf.mac
	}
	a.bridgeMAC = macs.Bridge(a.conf.Bridge)
	return a, nil
}

// first refuses an internal network on a bridge that other networks use.
func (a *adding) first(f *record.Fact) error {
	if f.Name != record.InternalFact(a.conf.Bridge) {
		return nil
	}
	return a.conf.alone(a.k)
}

func inputOf(r *plugin.Request) input {
	return input{conf: plugin.ConfOf[Conf](r), network: r.Network, comment: endpoint.Comment(r)}
}

// apply records the whole state of the attachment and then applies the part in todo.
func apply(ctx context.Context, r *plugin.Request, a *adding, all, todo netstate.State) error {
	rec := &record.Record{Bridge: a.conf.Bridge, Links: []string{a.pair.Host}}
	endpoint.Note(rec, all)
	if err := a.k.Record(r, rec); err != nil {
		return err
	}
	return a.k.Apply(ctx, r, a.env, todo)
}

// describe adds to the result what only the kernel knows. describe reads the bridge's MAC
// again, unless the MAC is fixed, because ports may change it.
func describe(env *netstate.Env, c *Conf, result *spec.Result) error {
	if !c.IsGateway {
		env.Forget(netstate.Host, c.Bridge)
	}
	errs := []error{
		endpoint.Describe(env, netstate.Host, &result.Interfaces[atBridge]),
		endpoint.Describe(env, netstate.Sandbox, &result.Interfaces[atContainer]),
	}
	result.Interfaces[atHost].MTU = result.Interfaces[atContainer].MTU
	if len(result.Interfaces) > atVLAN {
		errs = append(errs, endpoint.Describe(env, netstate.Host, &result.Interfaces[atVLAN]))
	}
	return errors.Join(errs...)
}

func check(ctx context.Context, r *plugin.Request) error {
	k := kernel.Of(r)
	in := inputOf(r)
	if err := in.conf.fits(k); err != nil {
		return err
	}
	env, err := k.Env(r)
	if err != nil {
		return err
	}
	if in.pair, err = endpoint.Found(r, env); err != nil {
		return err
	}
	if in.conf.IsGateway { // unless it is the gateway, a bridge of the reference may change its MAC when ports come and go
		if in.bridgeMAC, err = endpoint.MACOf(r.Prev(), in.conf.Bridge); err != nil {
			return err
		}
	}
	if in.conf.IPAM.Type != "" {
		in.ipam = r.Prev()
	}
	state, _, err := compile(in)
	if err != nil {
		return err
	}
	return endpoint.Check(ctx, r, env, append(state, reached(state, r.Prev().IPs)...))
}

// reached returns one object for each container address whose gateway is this host. The object
// checks that the host's route to the address leads through the link that has the gateway.
func reached(s netstate.State, ips []spec.IPConfig) (out netstate.State) {
	for _, o := range s {
		g, ok := o.(netstate.Gateway)
		if !ok {
			continue
		}
		for _, ip := range ips {
			if g.Prefix.Masked().Contains(ip.Address.Addr()) || g.Subnet.Contains(ip.Address.Addr()) {
				out = append(out, netstate.Reached{Link: g.Link, Addr: ip.Address.Addr(), Gateway: g.Prefix})
			}
		}
	}
	return out
}

// status reports whether an ADD could work. If the configuration needs VLANs, the kernel must
// support them. The bridge's name must be free, or belong to a bridge that accepts the
// gateways. If the configuration needs the firewall, we must be allowed to change it.
func status(_ context.Context, r *plugin.Request) error {
	conf, k := plugin.ConfOf[Conf](r), kernel.Of(r)
	host, err := k.Host()
	if err == nil {
		err = conf.fits(k)
	}
	if err == nil && conf.Internal {
		err = conf.alone(k)
	}
	if err == nil && (conf.Vlan != 0 || conf.VlanTrunk != nil) {
		err = host.CanFilterVLANs()
	}
	if err != nil {
		return spec.Errorf(spec.CodeNotAvailable, "%w", err)
	}
	link, err := host.Link(conf.Bridge)
	if err == nil && link.Type() != "bridge" {
		return spec.Errorf(spec.CodeNotAvailable, "%q already exists but is not a bridge", conf.Bridge)
	}
	if err := conf.ready(r, k, host); err != nil {
		return spec.Errorf(spec.CodeNotAvailable, "%w", err)
	}
	if conf.IPMasq || len(conf.IPMasqOutside) > 0 || conf.MacSpoofChk || conf.Internal {
		if err := endpoint.FirewallReady(r); err != nil {
			return err
		}
	}
	return endpoint.Ready(r)
}
