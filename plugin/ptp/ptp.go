// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package ptp is the plugin `ptp`. The plugin connects a container to the host with a veth pair,
// like a point-to-point link. The container reaches its whole subnet through the gateway. The
// host's end of every pair has the gateway's address. The host has one route to each container.
package ptp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/endpoint"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

const name = "ptp"

// Plugin has the name, the versions and the functions of this plugin.
var Plugin = plugin.Plugin{
	Name:  name,
	Kind:  plugin.Interface,
	About: "joins a container to the host, point to point",
	Conf:  func() any { return new(Conf) },

	NoPrev:    plugin.NoPrev{Check: "ptp: Required prevResult missing"},
	Delegates: true,
	Marked:    true,

	Validate: validate,
	Warnings: doubts,

	Add:    add,
	Del:    endpoint.Detach,
	Check:  check,
	GC:     endpoint.Collect,
	Status: status,
}

// Conf is the configuration of this plugin.
type Conf struct {
	// IPMasq masquerades packets that leave the subnets: they get the host's address. Reference:
	// makes rules for each container and leaves them behind if the namespace ended before DEL.
	IPMasq bool `json:"ipMasq"`

	// MTU is the MTU of the veth pair in bytes; 0 means the kernel's default. Reference: does
	// not report it in the result.
	MTU int `json:"mtu"`

	// IPMasqOutside lists prefixes that contain the subnets. A packet that leaves the prefix of its
	// source address is masqueraded, with or without ipMasq. Reference: none, ours only.
	IPMasqOutside endpoint.Outside `json:"ipMasqOutside"`

	// Unreachable lists prefixes to which the host sends packets only by routes to parts of them, and
	// never by its default route: ADD adds an unreachable route for each, if there is none, and fails if
	// another program's route takes its packets. DEL leaves it. The agent of a Kubernetes node sets
	// this if its network is encrypted. Reference: none, ours only.
	Unreachable []netip.Prefix `json:"unreachable"`

	// IPMasqBackend may be iptables or nftables; both mean our table `inet patchbay`.
	// Reference: runs iptables (default) or nft.
	IPMasqBackend *string `json:"ipMasqBackend"`

	IPAM struct {
		// Type is the IPAM plugin; required. It must give a gateway with each address. The other
		// keys of the section belong to that plugin. Reference: fails in netlink without a
		// gateway.
		Type string `json:"type"`
	} `json:"ipam"`

	// DNS replaces IPAM's DNS settings if any of its keys is set. Reference: same.
	DNS spec.DNS `json:"dns"`
}

// Load validates the configuration.
func (c *Conf) Load(*plugin.Request) error {
	if err := endpoint.ValidateMTU(c.MTU); err != nil {
		return err
	}
	if b := c.IPMasqBackend; b != nil && *b != "iptables" && *b != "nftables" {
		return spec.Invalid("unknown ipmasq backend %q", *b)
	}
	if c.IPAM.Type == "" {
		return spec.Invalid("no plugin name provided")
	}
	if err := endpoint.ValidateNetworks("unreachable", c.Unreachable); err != nil {
		return err
	}
	return c.IPMasqOutside.Validate()
}

func inputOf(r *plugin.Request) input {
	return input{conf: plugin.ConfOf[Conf](r), network: r.Network, comment: endpoint.Comment(r)}
}

func add(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
	k := kernel.Of(r)
	env, err := k.Env(r)
	if err != nil {
		return nil, err
	}
	in := inputOf(r)
	if in.pair, err = endpoint.New(ctx, r, env, endpoint.AddressesOf(k, r.Owner)); err != nil {
		return nil, err
	}
	if in.ipam, err = r.IPAMAdd(ctx); err != nil {
		return nil, err
	}
	if err := cmp.Or(endpoint.ValidateAnswer(in.conf.MTU, in.ipam), checkGateways(env.Host, in.pair.Host, in.ipam)); err != nil {
		return nil, err
	}
	state, result, err := compile(in)
	if err != nil {
		return nil, err
	}
	state = append(state, endpoint.Egress(r, state)...)
	rec := &record.Record{Links: []string{in.pair.Host}}
	endpoint.Note(rec, state)
	if err := k.Record(r, rec); err != nil {
		return nil, err
	}
	if err := k.Apply(ctx, r, env, state); err != nil || r.Session.Dry != nil {
		return result, err
	}
	return result, errors.Join(
		endpoint.Describe(env, netstate.Host, &result.Interfaces[atHost]),
		endpoint.Describe(env, netstate.Sandbox, &result.Interfaces[atContainer]),
	)
}

func check(ctx context.Context, r *plugin.Request) error {
	k := kernel.Of(r)
	env, err := k.Env(r)
	if err != nil {
		return err
	}
	in := inputOf(r)
	in.ipam = r.Prev()
	if in.pair, err = endpoint.Found(r, env); err != nil {
		return err
	}
	state, _, err := compile(in)
	if err != nil {
		return err
	}
	if rec, err := k.Records.Read(r.Network, r.Owner, name); err == nil && rec != nil {
		repairable(state)
	}
	return endpoint.Check(ctx, r, env, state)
}

// checkGateways returns an error if the kernel would refuse a gateway's address on the host's end.
func checkGateways(host *nl.Conn, end string, ipam *spec.Result) error {
	for _, ip := range ipam.IPs {
		if !ip.Gateway.Is6() {
			continue
		}
		if off := endpoint.NoIPv6(host); off != "" {
			return endpoint.IPv6IsOff(end, single(ip.Gateway), off)
		}
		return nil
	}
	return nil
}

func status(_ context.Context, r *plugin.Request) error {
	host, err := kernel.Of(r).Host()
	for _, answer := range endpoint.Answers(r, plugin.ConfOf[Conf](r).IPAM.Type) {
		if err == nil {
			err = checkGateways(host, "veth", answer)
		}
	}
	if err != nil {
		return spec.Errorf(spec.CodeNotAvailable, "%w", err)
	}
	if conf := plugin.ConfOf[Conf](r); conf.IPMasq || len(conf.IPMasqOutside) > 0 {
		if err := endpoint.FirewallReady(r); err != nil {
			return err
		}
	}
	return endpoint.Ready(r)
}

// validate checks the configuration against the addresses that IPAM would give.
func validate(r *plugin.Request) error {
	c := plugin.ConfOf[Conf](r)
	return endpoint.ValidateSamples(r, func(ipam *spec.Result) (*spec.Result, error) {
		if err := endpoint.ValidateAnswer(c.MTU, ipam); err != nil {
			return nil, err
		}
		for _, ip := range ipam.IPs {
			if ip.Gateway.IsValid() && ip.Gateway.Is4() != ip.Address.Addr().Is4() {
				return nil, spec.Invalid("the gateway %s of %s is of the other address family", ip.Gateway, ip.Address)
			}
		}
		return reaching(ipam), nil
	})
}

// reaching returns IPAM's answer with routes to the gateways, because this plugin makes the
// gateways neighbours.
func reaching(ipam *spec.Result) *spec.Result {
	result := *ipam
	result.IPs = slices.Clone(ipam.IPs)
	for _, ip := range ipam.IPs {
		if ip.Gateway.IsValid() {
			result.IPs = append(result.IPs, spec.IPConfig{Address: single(ip.Gateway)})
		}
	}
	return &result
}

// doubts warns about an address without a gateway. validate accepts it, because CNI_ARGS may
// name a gateway.
func doubts(r *plugin.Request) (list []string) {
	for _, sample := range r.Samples() {
		for _, ip := range sample.IPs {
			if ip.Gateway == (netip.Addr{}) {
				list = append(list, fmt.Sprintf("IPAM gives %s without a gateway, which ptp needs: an ADD works only if CNI_ARGS has one", ip.Address))
			}
		}
	}
	return list
}
