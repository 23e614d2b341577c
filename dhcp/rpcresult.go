// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"net"
	"net/netip"

	"github.com/patchbay-net/patchbay/spec"
)

// The reference's result for gob, which identifies fields by their names. The version is
// left to the caller, as in the reference's daemon.
type (
	result struct {
		IPs    []*ipConfig
		Routes []*route
		DNS    spec.DNS
	}
	ipConfig struct {
		Address net.IPNet
		Gateway net.IP
	}
	route struct {
		Dst      net.IPNet
		GW       net.IP
		MTU      int
		AdvMSS   int
		Priority int
		Table    *int
		Scope    *int
	}
)

func encode(r *spec.Result, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	out := &result{DNS: r.DNS}
	for _, ip := range r.IPs {
		out.IPs = append(out.IPs, &ipConfig{Address: ipNet(ip.Address), Gateway: ip.Gateway.AsSlice()})
	}
	for _, r := range r.Routes {
		out.Routes = append(out.Routes, &route{Dst: ipNet(r.Dst), GW: r.GW.AsSlice(), MTU: r.MTU, AdvMSS: r.AdvMSS,
			Priority: r.Priority, Table: r.Table, Scope: r.Scope})
	}
	return out, nil
}

func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
