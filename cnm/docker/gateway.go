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

// The Driver says which networks need no gateway.
var _ cnm.GatewayChecker = (*Driver)(nil)

// GwAllocCheck implements cnm.GatewayChecker: Docker 28 and later ask it before
// they take an address of the pool for a gateway. It is called before
// CreateNetwork, with the same options.
func (d *Driver) GwAllocCheck(ctx context.Context, in *cnm.GwAllocCheckRequest) (*cnm.GwAllocCheckResponse, error) {
	_, list, err := d.configured(ctx, in.Options)
	if err != nil {
		return nil, err
	}
	return &cnm.GwAllocCheckResponse{SkipIPv4: !hasGateway(list, false), SkipIPv6: !hasGateway(list, true)}, nil
}

// gatewayConf is all by which a first plugin has a gateway.
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

// Plugins that have no gateway unless their ipam section names one, and IPAM
// plugins that have none but what stands there. host-local is none of them: it
// keeps the first address of a subnet from everybody.
var (
	layer2     = [...]string{"bridge", "macvlan", "ipvlan", "vlan", "host-device", "dummy", "tap"}
	inTheirOwn = [...]string{"", "static"}
)

// hasGateway says whether an address of the subnet is a gateway's, and so is none
// to give to a container. It is true where that cannot be read: an address that
// is reserved for nothing costs less than one that is used twice.
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
