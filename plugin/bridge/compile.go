// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/patchbay-net/patchbay/internal/endpoint"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/prefix"
	"github.com/patchbay-net/patchbay/spec"
)

// These are the indexes of the result's interfaces. Callers rely on them.
const (
	atBridge = iota
	atHost
	atContainer
	atVLAN // exists only with a gateway in a VLAN
)

// input is everything that compile reads.
type input struct {
	conf      *Conf
	ipam      *spec.Result // nil: no addresses, layer 2 only
	pair      *endpoint.Pair
	bridgeMAC net.HardwareAddr // MAC of a new bridge
	comment   string           // comment of the firewall elements
	network   string
}

// compile computes the desired state and the result. compile changes nothing.
func compile(in input) (netstate.State, *spec.Result, error) {
	s, result, err := configuration(in)
	if err != nil {
		return nil, nil, err
	}
	return append(link(in), s...), result, nil
}

// link returns the bridge, the veth pair and the port. This part of the state does not need
// IPAM's answer. It comes first, because some IPAM plugins work through the link.
func link(in input) netstate.State {
	c := in.conf
	veth := in.pair.Veth(c.MTU)
	veth.Bridge, veth.Port = c.Bridge, nl.PortFlags{Hairpin: c.HairpinMode, Isolated: c.PortIsolation}
	veth.NoIPv6 = true
	s := append(append(refused(c), isolation(in)...),
		netstate.Bridge{
			Name: c.Bridge, MTU: c.MTU, MAC: in.bridgeMAC, Promisc: c.PromiscMode,
			VLANFiltering: c.Vlan != 0 || c.VlanTrunk != nil, Pin: c.IsGateway,
			Network: in.network, NoDuplicates: c.Vlan == 0 && c.noDuplicates(),
		},
		endpoint.NoRouters(c.Bridge), // ports have no IP stack of their own
		veth,
	)
	if list := portVLANs(c); len(list) > 0 {
		s = append(s, netstate.PortVLANs{
			Link: in.pair.Host, Bridge: c.Bridge, KeepDefault: c.PreserveDefaultVlan, List: list,
		})
	}
	if c.MacSpoofChk {
		for _, e := range spoofElements(in.pair, in.comment) {
			s = append(s, netstate.Element{Element: e})
		}
	}
	return s
}

// refused returns the routes that keep packets from the default route. They come first, because the
// container may send as soon as it has a link.
func refused(c *Conf) (s netstate.State) {
	for _, p := range c.Unreachable {
		s = append(s, netstate.Unreachable{Dst: p, Protocol: netstate.HostsProtocol})
	}
	return s
}

// configuration returns the part of the state that needs IPAM's answer, and the result. The
// result lacks what only the kernel knows: the MTU, and the MAC of an existing bridge.
func configuration(in input) (s netstate.State, result *spec.Result, err error) {
	c := in.conf
	result = &spec.Result{Interfaces: []spec.Interface{
		atBridge:    {Name: c.Bridge},
		atHost:      {Name: in.pair.Host, Mac: in.pair.HostMAC.String()},
		atContainer: {Name: in.pair.IfName, Mac: in.pair.MAC.String(), Sandbox: in.pair.NetNS},
	}}
	if in.ipam == nil {
		result.DNS = c.DNS
		return bringUp(in), result, nil
	}
	if len(in.ipam.IPs) == 0 {
		return nil, nil, spec.Invalid("IPAM plugin returned missing IP config")
	}
	result.IPs, result.Routes = addressing(c, in.ipam)
	result.DNS = endpoint.DNS(c.DNS, in.ipam.DNS)
	s = append(s, spans(in, result.IPs)...)
	s = append(s, bridgeDAD(c, result.IPs)...)
	s = append(s, container(c, result)...)
	s = append(s, gateways(in, result)...)
	s = append(s, bringUp(in)...)
	s = append(s, settle(c, in.pair, result)...)
	if !c.Internal {
		s = append(s, endpoint.Masquerade(result.IPs, c.IPMasq, c.IPMasqOutside, in.comment)...)
	}
	return s, result, nil
}

// bridgeDAD applies gatewayDAD if the bridge itself is the gateway.
func bridgeDAD(c *Conf, ips []spec.IPConfig) netstate.State {
	list := gatewayDAD(c, ips)
	if c.Vlan != 0 || len(list) == 0 {
		return nil
	}
	return netstate.State{netstate.IPv6{Where: netstate.Host, List: list}}
}

// gatewayDAD lets a gateway send IPv6 neighbour solicitations at once, without duplicate address
// detection. Both ends of the link are ours, so there is no duplicate. The setting must be
// written before the kernel starts duplicate detection for the link-local address. For a new bridge
// that is when it goes up (netstate.Bridge), and for another one when its first port gets a carrier.
func gatewayDAD(c *Conf, ips []spec.IPConfig) []netstate.LinkIPv6 {
	if !c.noDuplicates() {
		return nil
	}
	return endpoint.NoDuplicates(c.gatewayLink(), ips)
}

// noDuplicates reports whether the gateway's link is not to look for duplicates.
func (c *Conf) noDuplicates() bool { return c.IsGateway && !c.EnableDad }

// spoofElements returns elements that let the container send only from its own MAC. spoofElements
// adds no element to the set of owners, because portmap uses that set to find its own attachments
// when their records are lost.
func spoofElements(p *endpoint.Pair, comment string) []nft.Element {
	return nft.CheckMAC(p.Host, p.MAC, comment)
}

// portVLANs returns the VLANs of the port in the reference's order. The order decides if the
// configuration has a VLAN both tagged and untagged. If there is a trunk and no vlan, VLAN 1 is
// untagged.
func portVLANs(c *Conf) (list []netstate.VLANs) {
	untagged := func(id uint16) netstate.VLANs { return netstate.VLANs{First: id, Last: id, PVID: true} }
	if c.Vlan != 0 {
		list = append(list, untagged(uint16(c.Vlan)))
	}
	for _, t := range c.trunks {
		list = append(list, netstate.VLANs{First: t.first, Last: t.last})
	}
	if c.Vlan == 0 && len(c.trunks) > 0 {
		list = append(list, untagged(1))
	}
	return list
}

// addressing completes IPAM's addresses and routes. Every address belongs to the container's
// interface. If IPAM gives no gateway, the gateway is the first address of the subnet. Each
// family gets a default route.
func addressing(c *Conf, ipam *spec.Result) (ips []spec.IPConfig, routes []spec.Route) {
	routes = append(routes, ipam.Routes...)
	done := make(map[bool]bool) // families with a default route
	for _, ip := range ipam.IPs {
		at := atContainer
		ip.Interface = &at
		if !ip.Gateway.IsValid() && c.IsGateway {
			ip.Gateway = ip.Address.Masked().Addr().Next()
		}
		ips = append(ips, ip)
		v4 := ip.Address.Addr().Is4()
		if c.IsDefaultGateway && !done[v4] && !hasDefault(routes, v4) {
			routes = append(routes, spec.Route{Dst: spec.DefaultDst(v4), GW: ip.Gateway})
		}
		done[v4] = true
	}
	return ips, routes
}

func hasDefault(routes []spec.Route, v4 bool) bool {
	for _, r := range routes {
		if (r.GW.IsValid() || r.OnLink()) && r.Dst == spec.DefaultDst(v4) {
			return true
		}
	}
	return false
}

// container returns the state in the sandbox: settings, addresses, link and routes.
func container(c *Conf, result *spec.Result) netstate.State {
	name := result.Interfaces[atContainer].Name
	s := endpoint.EnableIPv6(name, result.IPs, settings(name, c.EnableDad)...)
	if c.EnableDad && !endpoint.HasFamily(result.IPs, false) { // for addresses that other programs add
		s = netstate.State{netstate.IPv6{Where: netstate.Sandbox, List: settings(name, true)}}
	}
	for _, ip := range result.IPs {
		s = append(s, netstate.Addr{Where: netstate.Sandbox, Link: name, Prefix: ip.Address, DAD: c.EnableDad})
	}
	s = append(s, netstate.Up{Where: netstate.Sandbox, Link: name, Notify: true})
	for _, route := range endpoint.Routes(name, result) {
		s = append(s, route)
	}
	return s
}

// settings returns settings of the container's interface. The kernel announces the interface's
// IPv6 addresses. If dad is set, the kernel also looks for duplicates, even of addresses that
// other programs add.
func settings(name string, dad bool) []netstate.LinkIPv6 {
	list := []netstate.LinkIPv6{{Link: name, Conf: nl.NdiscNotify, Value: 1}}
	if !dad {
		return append(list, netstate.LinkIPv6{Link: name, Conf: nl.AcceptDAD, Value: 0})
	}
	return append(list,
		netstate.LinkIPv6{Link: name, Conf: nl.EnhancedDAD, Value: 1},
		netstate.LinkIPv6{Link: name, Conf: nl.AcceptDAD, Value: 1})
}

// gateways gives the gateways' addresses to the bridge, or to its interface in the VLAN.
// gateways also switches forwarding on.
func gateways(in input, result *spec.Result) (s netstate.State) {
	c := in.conf
	if !c.IsGateway {
		return nil
	}
	link := c.gatewayLink()
	if c.Vlan != 0 {
		s = append(s, netstate.VLANGateway{
			Name: link, Peer: owner.Of("vlan gateway", c.Bridge, link).LinkName("veth", 0),
			Bridge: c.Bridge, VLAN: uint16(c.Vlan), KeepDefault: c.PreserveDefaultVlan,
			Settings: append(gatewayDAD(c, result.IPs), netstate.LinkIPv6{Link: link, Conf: nl.AcceptRA, Value: 0}),
		})
		result.Interfaces = append(result.Interfaces, spec.Interface{Name: link})
	}
	for _, v4 := range []bool{true, false} {
		for _, ip := range result.IPs {
			if ip.Address.Addr().Is4() == v4 {
				g := netstate.Gateway{Link: link, Prefix: netip.PrefixFrom(ip.Gateway, ip.Address.Bits()), Force: c.ForceAddress, DAD: c.EnableDad}
				if prefix.IsLinkLocal(ip.Gateway) {
					g.Subnet = ip.Address.Masked()
				}
				s = append(s, g)
			}
		}
	}
	if c.Internal {
		return s
	}
	return append(s, endpoint.Forwarding(result.IPs, link, "failed to enable forwarding", in.network))
}

// gatewayLink returns the name of the interface that has the gateways: the bridge, or our
// interface in the VLAN.
func (c *Conf) gatewayLink() string {
	if c.Vlan == 0 {
		return c.Bridge
	}
	return fmt.Sprintf("%s.%d", c.Bridge, c.Vlan)
}

// bringUp waits for the port, unless the container's end stays down.
func bringUp(in input) (s netstate.State) {
	if in.conf.DisableContainerInterface {
		return nil
	}
	if in.ipam == nil {
		s = append(s, netstate.Up{Where: netstate.Sandbox, Link: in.pair.IfName})
	}
	return append(s, netstate.PortUp{Link: in.pair.Host})
}

// settle announces the addresses when the port forwards. If the configuration asks for duplicate
// address detection, settle waits for that first. The announcement is needed although host-local
// uses an address again only after all others: the gateway may still have a neighbour entry of an
// earlier container.
func settle(c *Conf, p *endpoint.Pair, result *spec.Result) (s netstate.State) {
	if c.EnableDad && endpoint.HasFamily(result.IPs, false) {
		s = append(s, netstate.Settle{Link: p.IfName})
	}
	a := netstate.Announce{Link: p.IfName}
	if c.IsGateway && c.IPAM.Type == "host-local" {
		a.Gateway = c.gatewayLink()
		for _, ip := range result.IPs {
			a.Addrs = append(a.Addrs, ip.Address.Addr())
		}
	}
	addrs, gateways := endpoint.Of(result.IPs)
	s = append(append(s, a), endpoint.Answering(netstate.Sandbox, p.IfName, addrs...)...)
	if c.IsGateway {
		s = append(s, endpoint.Answering(netstate.Host, c.gatewayLink(), gateways...)...)
	}
	return s
}
