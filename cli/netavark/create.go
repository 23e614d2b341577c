// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netavark

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cli/netfile"
)

// network is a network of podman's.
type network struct {
	Name      string            `json:"name"`
	Interface string            `json:"network_interface"`
	Subnets   []Subnet          `json:"subnets"`
	Routes    []json.RawMessage `json:"routes"`
	IPv6      bool              `json:"ipv6_enabled"`
	Internal  bool              `json:"internal"`
	DNS       []netip.Addr      `json:"network_dns_servers"`
	Labels    map[string]string `json:"labels"` // netavark 1 passes them only to create
	Options   map[string]string `json:"options"`
	IPAM      map[string]string `json:"ipam_options"`
}

// Subnet is a subnet with the keys that podman has for it.
type Subnet struct {
	Subnet  netip.Prefix `json:"subnet"`
	Gateway netip.Addr   `json:"gateway,omitzero"`
	Lease   Span         `json:"lease_range,omitzero"`
}

// Span is the part of a subnet from which containers get addresses.
type Span struct {
	First netip.Addr `json:"start_ip,omitzero"`
	Last  netip.Addr `json:"end_ip,omitzero"`
}

// Subnets returns the subnets of a CNI network.
func Subnets(about netfile.Info) (out []Subnet) {
	for _, s := range about.Subnets {
		out = append(out, Subnet{s.Prefix, s.Gateway, Span{s.First, s.Last}})
	}
	return out
}

// ipamDriver is the IPAM driver in the answer of create. podman does not know it, so podman allocates no addresses
// itself, and does not use the subnets for its own bridges.
const ipamDriver = "patchbay"

// create answers podman network create. podman stores the answer, and passes it to each setup and teardown. create
// changes nothing, because podman removes a network without a call.
func (d *Driver) create(ctx context.Context, input []byte) (map[string]any, error) {
	n, answer := new(network), map[string]any{}
	if err := json.Unmarshal(input, n); err != nil {
		return nil, fmt.Errorf("read netavark's call create: %w", err)
	}
	if err := json.Unmarshal(input, &answer); err != nil { // fields that this version does not know stay
		return nil, fmt.Errorf("read netavark's call create: %w", err)
	}
	o, err := n.options()
	if err != nil {
		return nil, err
	}
	list, rt, err := d.Find(o.network)
	if err != nil {
		return nil, err
	}
	about := netfile.Describe(list)
	if err := n.decided(about, list.Name); err != nil {
		return nil, err
	}
	if err := d.usable(ctx, list, rt); err != nil {
		return nil, fmt.Errorf("CNI network %s: %w", list.Name, err)
	}
	maps.Copy(answer, n.described(about, list.Name))
	return answer, nil
}

// usable asks the plugins whether they can work. Without root it does not ask for their state: this call is in the
// host's namespaces, but later calls are in podman's.
func (d *Driver) usable(ctx context.Context, list *chain.List, rt *chain.Runtime) error {
	if _, err := rt.Validate(ctx, list); err != nil || d.Rootless {
		return err
	}
	if err := rt.Status(ctx, list); err != nil {
		return fmt.Errorf("not ready: %w", err)
	}
	return nil
}

// described returns the fields of a network that its CNI network decides. podman's Docker API fails for a subnet
// without a gateway, so each subnet has one. netavark resolves no names in networks of plugins, so dns_enabled is
// false.
func (n *network) described(about netfile.Info, cni string) map[string]any {
	options := n.given()
	options[optNetwork] = cni
	out := map[string]any{
		"options": options, "ipam_options": map[string]string{"driver": ipamDriver},
		"internal": about.Internal, "dns_enabled": false, "ipv6_enabled": false,
	}
	if about.Interface != "" {
		out["network_interface"] = about.Interface
	}
	if subnets := apart(Subnets(about)); len(subnets) > 0 {
		out["subnets"] = subnets
		out["ipv6_enabled"] = slices.ContainsFunc(subnets, Subnet.Is6)
	}
	return out
}

// Is6 reports whether the subnet is of IPv6.
func (s Subnet) Is6() bool { return s.Subnet.Addr().Is6() }

// apart returns those subnets that podman accepts in one network: none overlaps another, and each gateway is in its
// subnet. host-local's default for a gateway is the first address.
func apart(list []Subnet) (out []Subnet) {
	for _, s := range list {
		if slices.ContainsFunc(out, func(o Subnet) bool { return o.Subnet.Overlaps(s.Subnet) }) {
			continue
		}
		if !s.Subnet.Contains(s.Gateway) {
			s.Gateway = s.Subnet.Addr().Next()
		}
		for _, end := range []*netip.Addr{&s.Lease.First, &s.Lease.Last} {
			if !s.Subnet.Contains(*end) {
				*end = netip.Addr{}
			}
		}
		if s.Subnet.Contains(s.Gateway) {
			out = append(out, s)
		}
	}
	return out
}

// decided returns an error if podman's network differs from the file of the CNI network in a value that the file
// decides. Compose files may repeat the file's values.
func (n *network) decided(about netfile.Info, cni string) error {
	refused := func(flag, subject string) error {
		return fmt.Errorf("%s: the file of CNI network %s decides about %s; leave the option out, or change the file (patchbay network inspect %s)", flag, cni, subject, cni)
	}
	has := Subnets(about)
	switch {
	case len(n.Routes) > 0:
		return refused("--route", "routes")
	case n.Internal && !about.Internal:
		return refused("--internal", "what the host forwards")
	case n.Interface != "" && n.Interface != about.Interface:
		return refused("--interface-name", "the interface on the host")
	case n.IPAM["driver"] != "" && n.IPAM["driver"] != ipamDriver:
		return refused("--ipam-driver", "addresses")
	case len(n.DNS) > 0:
		return refused("--dns", "name servers")
	case n.IPv6 && len(has) > 0 && !slices.ContainsFunc(has, Subnet.Is6):
		return refused("--ipv6", "addresses, and has no range of IPv6")
	}
	for _, s := range n.Subnets {
		if !slices.ContainsFunc(apart(has), s.repeats) {
			return refused(fmt.Sprintf("--subnet, --gateway or --ip-range (%s)", s.Subnet), "addresses")
		}
	}
	return nil
}

// repeats reports whether a subnet that the user gave agrees with that of the configuration.
func (s Subnet) repeats(conf Subnet) bool {
	return s.Subnet.Masked() == conf.Subnet && (!s.Gateway.IsValid() || s.Gateway == conf.Gateway) && (s.Lease == Span{} || s.Lease == conf.Lease)
}
