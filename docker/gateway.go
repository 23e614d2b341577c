// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"encoding/json"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cnm"
)

// Driver says which networks need no gateway.
var _ cnm.GatewayChecker = (*Driver)(nil)

// GwAllocCheck implements cnm.GatewayChecker. Docker 28 and later call it before
// CreateNetwork, with the same options, and before they take an address of the pool for a
// gateway.
func (d *Driver) GwAllocCheck(ctx context.Context, in *cnm.GwAllocCheckRequest) (*cnm.GwAllocCheckResponse, error) {
	_, list, err := d.configured(ctx, in.Options)
	if err != nil {
		return nil, err
	}
	return &cnm.GwAllocCheckResponse{SkipIPv4: !hasGateway(list, false), SkipIPv6: !hasGateway(list, true)}, nil
}

// gatewayConf holds the keys that give a first plugin a gateway.
type gatewayConf struct {
	IsGateway        bool `json:"isGateway"`
	IsDefaultGateway bool `json:"isDefaultGateway"`
	IPAM             struct {
		Type      string      `json:"type"`
		Addresses []ipamRange `json:"addresses"`
		Routes    []struct {
			Dst string `json:"dst"`
			GW  string `json:"gw"`
		} `json:"routes"`
	} `json:"ipam"`
}

// layer2 are the plugins without a gateway unless their ipam section names one;
// inTheirOwn are the IPAM plugins whose section lists all gateways. host-local is not
// among them: it reserves the first address of a subnet.
var (
	layer2     = [...]string{"bridge", "macvlan", "ipvlan", "vlan", "host-device", "dummy", "tap"}
	inTheirOwn = [...]string{"", "static"}
)

// hasGateway says whether an address of the subnet is a gateway's, and so must not be
// given to a container. If this cannot be read, it is true: a needlessly reserved address
// costs less than one that is used twice.
func hasGateway(list *chain.List, v6 bool) bool {
	p := first(list)
	var conf gatewayConf
	if json.Unmarshal(p.Raw, &conf) != nil || !slices.Contains(layer2[:], p.Type) || !slices.Contains(inTheirOwn[:], conf.IPAM.Type) {
		return true
	}
	if p.Type == "bridge" && (conf.IsGateway || conf.IsDefaultGateway) {
		return true
	}
	named := []string{}
	for _, a := range conf.IPAM.Addresses {
		named = append(named, a.Gateway)
	}
	for _, r := range conf.IPAM.Routes {
		dst, err := netip.ParsePrefix(r.Dst)
		if err == nil && dst.Bits() == 0 && dst.Addr().Is6() == v6 {
			return true
		}
		named = append(named, r.GW)
	}
	return slices.ContainsFunc(named, func(text string) bool {
		a, err := netip.ParseAddr(text)
		return err == nil && a.Is6() == v6
	})
}
