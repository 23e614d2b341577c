// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/spec"
)

// The reference uses these values for times that a server did not send.
const (
	defaultLease = time.Hour
	defaultT1V4  = 0.5
	defaultT2V4  = 0.85
)

var errNoMask = errors.New("DHCP option Subnet Mask not found in DHCPACK")

// parseV4 returns the grant in a DHCPACK.
func parseV4(ack *dhcpv4.DHCPv4) (*Lease, error) {
	ip, ok := netip.AddrFromSlice(ack.YourIPAddr.To4())
	if !ok || ip.IsUnspecified() {
		return nil, errors.New("no address in DHCPACK")
	}
	mask := ack.SubnetMask()
	if mask == nil {
		return nil, errNoMask
	}
	bits, size := mask.Size()
	if size != 32 {
		return nil, fmt.Errorf("invalid subnet mask %s in DHCPACK", mask)
	}
	g := &Lease{
		Raw:     ack.ToBytes(),
		Address: netip.PrefixFrom(ip, bits),
		Gateway: gateway(ack),
		Routes:  routes(ack),
		DNS:     dnsV4(ack),
		Valid:   ack.IPAddressLeaseTime(defaultLease),
		T1:      ack.IPAddressRenewalTime(0),
		T2:      ack.IPAddressRebindingTime(0),
	}
	if g.Valid < time.Second {
		return nil, fmt.Errorf("lease of %v in DHCPACK", g.Valid)
	}
	g.Order(defaultT1V4, defaultT2V4)
	return g, nil
}

func gateway(ack *dhcpv4.DHCPv4) netip.Addr {
	for _, ip := range ack.Router() {
		return nl.AddrOf(ip)
	}
	return netip.Addr{}
}

// scopeLink is RT_SCOPE_LINK.
const scopeLink = 253

// routes returns the routes in an ACK. If there are classless routes (option 121), only they
// count (RFC 3442). Otherwise these are the classful routes (option 33) and a default route
// through the router. Router 0.0.0.0 means that the destination is on the link. As in the
// reference, it stays in the result, because a route without a gateway would get the grant's
// gateway.
func routes(ack *dhcpv4.DHCPv4) (out []spec.Route) {
	for _, r := range ack.ClasslessStaticRoute() {
		route := spec.Route{Dst: nl.PrefixOf(r.Dest), GW: nl.AddrOf(r.Router)}
		if r.Router.IsUnspecified() {
			scope := scopeLink
			route.Scope = &scope
		}
		out = append(out, route)
	}
	if len(out) > 0 {
		return out
	}
	for opt := ack.Options.Get(dhcpv4.OptionStaticRoutingTable); len(opt) >= 8; opt = opt[8:] {
		dst := net.IP(opt[:4])
		out = append(out, spec.Route{Dst: nl.PrefixOf(&net.IPNet{IP: dst, Mask: dst.DefaultMask()}), GW: nl.AddrOf(net.IP(opt[4:8]))})
	}
	if gw := gateway(ack); gw.IsValid() {
		out = append(out, spec.Route{Dst: spec.DefaultDst(true), GW: gw})
	}
	return out
}

func dnsV4(ack *dhcpv4.DHCPv4) spec.DNS {
	d := spec.DNS{Domain: ack.DomainName()}
	for _, ip := range ack.DNS() {
		d.Nameservers = append(d.Nameservers, nl.AddrOf(ip).String())
	}
	if search := ack.DomainSearch(); search != nil {
		d.Search = search.Labels
	}
	return d
}

// complete adds options to the ACK of a renewal. Some servers (Windows) send only options that
// have changed. So if this ACK has no subnet mask, complete copies the options of the earlier
// ACK.
func complete(ack, before *dhcpv4.DHCPv4) {
	if ack.SubnetMask() != nil || !ack.YourIPAddr.Equal(before.YourIPAddr) {
		return
	}
	for code, value := range before.Options {
		if !ack.Options.Has(dhcpv4.GenericOptionCode(code)) {
			ack.Options[code] = value
		}
	}
}
