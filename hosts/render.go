// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/patchbay-net/patchbay/hosts/store"
	"github.com/patchbay-net/patchbay/spec"
)

// cniVersion is the version of the rendered configurations.
const cniVersion = "1.1.0"

// mark identifies our configurations. The agent changes no file without it.
const mark = "patchbayd hosts; changes are overwritten"

// conflist is the configuration of one network on one host.
type conflist struct {
	CNIVersion string            `json:"cniVersion"`
	Name       string            `json:"name"`
	Generated  string            `json:"generatedBy"`
	Plugins    []json.RawMessage `json:"plugins"`
}

// bridgeConf is the first plugin. It has the reference's fields, and ipMasqOutside. A release
// that does not know that field sets up no masquerade, which is better than a wrong one.
type bridgeConf struct {
	Type      string         `json:"type"`
	Bridge    string         `json:"bridge"`
	IsGateway bool           `json:"isGateway"`
	Hairpin   bool           `json:"hairpinMode"`
	Outside   []netip.Prefix `json:"ipMasqOutside"` // the whole network, of which the block is a part
	MTU       int            `json:"mtu,omitempty"`
	IPAM      ipamConf       `json:"ipam"`
	DNS       *spec.DNS      `json:"dns,omitempty"`
}

type ipamConf struct {
	Type   string        `json:"type"`
	Ranges [][]rangeConf `json:"ranges"`
	Routes []routeConf   `json:"routes"`
}

type rangeConf struct {
	Subnet netip.Prefix `json:"subnet"`
}

type routeConf struct {
	Dst netip.Prefix `json:"dst"`
}

// plan describes this host's part of one network.
type plan struct {
	Network store.Network
	Blocks  []netip.Prefix // this host's blocks, one of each family
	MTU     int            // the MTU of containers, in bytes; 0 means the kernel's default
	DNS     bool           // containers use our resolver
}

// gateways returns the addresses of the bridge, at which the resolver also listens.
func (p *plan) gateways() (out []netip.Addr) {
	for _, b := range p.Blocks {
		out = append(out, gatewayOf(b))
	}
	return out
}

// gatewayOf returns the address of the bridge in a block, which is host-local's default
// gateway.
func gatewayOf(block netip.Prefix) netip.Addr { return block.Masked().Addr().Next() }

// render returns the configuration of a network.
func render(p *plan) ([]byte, error) {
	b := bridgeConf{
		Type: "bridge", Bridge: bridgeName(p.Network.Name), IsGateway: true, Hairpin: true, Outside: p.Network.Subnets, MTU: p.MTU,
		IPAM: ipamConf{Type: "host-local"},
	}
	for _, block := range p.Blocks {
		b.IPAM.Ranges = append(b.IPAM.Ranges, []rangeConf{{block}})
		b.IPAM.Routes = append(b.IPAM.Routes, routeConf{spec.DefaultDst(block.Addr().Is4())})
	}
	if p.DNS {
		b.DNS = &spec.DNS{}
		for _, a := range p.gateways() {
			b.DNS.Nameservers = append(b.DNS.Nameservers, a.String())
		}
	}
	first, err := json.Marshal(b)
	if err != nil {
		return nil, fmt.Errorf("render network %s: %w", p.Network.Name, err)
	}
	list := conflist{CNIVersion: cniVersion, Name: p.Network.Name, Generated: mark, Plugins: append([]json.RawMessage{first}, following(&p.Network)...)}
	out, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("render network %s: %w", p.Network.Name, err)
	}
	return append(out, '\n'), nil
}

// following returns the plugins that come after the bridge.
func following(n *store.Network) []json.RawMessage {
	if n.Plugins != nil {
		return n.Plugins
	}
	return []json.RawMessage{
		json.RawMessage(`{"type":"firewall"}`),
		json.RawMessage(`{"type":"portmap","capabilities":{"portMappings":true}}`),
	}
}

// bridgeName returns the name of a network's bridge. It contains the network's name if that is
// short enough, so that users can read it.
func bridgeName(network string) string {
	const prefix = "pb-"
	if name := prefix + network; spec.ValidateIfName(name) == nil {
		return name
	}
	sum := sha256.Sum256([]byte(network))
	return prefix + hex.EncodeToString(sum[:6])
}
