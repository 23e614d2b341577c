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
	Del:    del,
	Check:  check,
	GC:     endpoint.Collect,
	Status: status,
}

func add(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
	env, in, err := prepare(ctx, r)
	if err != nil {
		return nil, err
	}
	first := link(in)
	todo := first
	if endpoint.IPAMNeedsLink(in.conf.IPAM.Type) {
		if err := apply(ctx, r, env, in, first, first); err != nil {
			return nil, err
		}
		todo = nil
	}
	if in.conf.IPAM.Type != "" {
		if in.ipam, err = r.IPAMAdd(ctx); err != nil {
			return nil, err
		}
		if err := endpoint.ValidateAnswer(in.conf.MTU, in.ipam); err != nil {
			return nil, err
		}
	}
	then, result, err := configuration(in)
	if err != nil {
		return nil, err
	}
	then = append(then, endpoint.Egress(r, then)...)
	if err := apply(ctx, r, env, in, slices.Concat(first, then), slices.Concat(todo, then)); err != nil || r.Session.Dry != nil {
		return result, err
	}
	return result, describe(env, in.conf, result)
}

// prepare reads the state of the host. prepare refuses a configuration that cannot work,
// before anything is changed.
func prepare(ctx context.Context, r *plugin.Request) (env *netstate.Env, in input, err error) {
	k := kernel.Of(r)
	if env, err = k.Env(r); err != nil {
		return nil, in, err
	}
	in = inputOf(r)
	if err := in.conf.fits(k); err != nil {
		return nil, in, err
	}
	env.First = func(f *record.Fact) error {
		if f.Name != record.InternalFact(in.conf.Bridge) {
			return nil
		}
		return in.conf.alone(k)
	}
	macs := endpoint.AddressesOf(r)
	if in.pair, err = endpoint.New(ctx, r, env, macs); err != nil {
		return nil, in, err
	}
	if in.conf.mac != nil {
		in.pair.MAC = in.conf.mac
	}
	in.bridgeMAC = macs.Bridge(in.conf.Bridge)
	return env, in, nil
}

func inputOf(r *plugin.Request) input {
	return input{conf: plugin.ConfOf[Conf](r), network: r.Network, comment: endpoint.Comment(r)}
}

// apply records the whole state of the attachment and then applies the part in todo.
func apply(ctx context.Context, r *plugin.Request, env *netstate.Env, in input, all, todo netstate.State) error {
	k := kernel.Of(r)
	rec := &record.Record{Bridge: in.conf.Bridge, Links: []string{in.pair.Host}}
	endpoint.Note(rec, all)
	if err := k.Record(r, rec); err != nil {
		return err
	}
	return k.Apply(ctx, r, env, todo)
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

func del(ctx context.Context, r *plugin.Request) error {
	if _, err := r.Conf(); err != nil || !plugin.ConfOf[Conf](r).MacSpoofChk {
		return endpoint.Detach(ctx, r) // a configuration that is no longer valid must not stop the DEL
	}
	return endpoint.Detach(ctx, r, spoofElements(endpoint.Lost(r), endpoint.Comment(r))...)
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
