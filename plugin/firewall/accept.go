// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft/iptnft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// accept plans how a FORWARD chain that drops packets recognises the container's packets. If the
// container's bridge has the subnet's address on the host, the rule matches bridge and subnet,
// and all containers of the subnet share it. Otherwise the rule matches only the container's
// address.
func (p *plan) accept(r *plugin.Request, env *netstate.Env) {
	if p.acceptInside(r) {
		return
	}
	bridge, has := hostBridge(r, env)
	for _, ip := range r.Prev().IPs {
		subnet := ip.Address.Masked()
		if subnet.IsSingleIP() || !slices.ContainsFunc(has, subnet.Contains) {
			a := ip.Address.Addr()
			p.addresses = append(p.addresses, netip.PrefixFrom(a, a.BitLen()))
			continue
		}
		p.acceptSubnet(p.subnetFact(bridge, subnet, false))
	}
}

func (p *plan) acceptSubnet(f record.Fact) {
	if !slices.ContainsFunc(p.accepts, func(o record.Fact) bool { return o.Name == f.Name }) {
		p.accepts = append(p.accepts, f)
	}
}

// acceptInside plans accept rules for an internal network: only traffic within its bridge.
// Everything else is dropped, even if another rule accepts it.
func (p *plan) acceptInside(r *plugin.Request) bool {
	links, records := r.Prev().Interfaces, kernel.Of(r).Records
	if !slices.ContainsFunc(links, func(i spec.Interface) bool { return i.Sandbox == "" && records.HasHolder(record.InternalFact(i.Name)) }) {
		return false
	}
	for _, subnet := range p.subnets {
		if !subnet.IsSingleIP() {
			p.acceptSubnet(p.subnetFact(links[0].Name, subnet, true))
		}
	}
	return true
}

// subnetFact returns the fact of a subnet on a bridge. If the operator's chain is not the
// default, the fact's name contains it.
func (p *plan) subnetFact(bridge string, subnet netip.Prefix, inside bool) record.Fact {
	f := record.Fact{Name: factAccept + bridge + "-" + subnet.String(), Accepts: []netip.Prefix{subnet}, Bridge: bridge, Inside: inside, Open: p.conf.AcceptNew && !inside}
	if inside {
		f.Name += "-inside"
	}
	if f.Open {
		f.Name += "-open"
	}
	if f.AdminChain = p.adminChain(); f.AdminChain != "" {
		f.Name += "-" + f.AdminChain
	}
	return f
}

// adminChain returns the operator's chain, or "" for the default chain.
func (p *plan) adminChain() string {
	if p.conf.IptablesAdminChainName == iptnft.DefaultAdminChain {
		return ""
	}
	return p.conf.IptablesAdminChainName
}

// hostBridge returns the bridge through which the container's packets enter, and the host's
// addresses on that bridge. hostBridge skips a bridge in a VRF, because FORWARD sees the VRF.
// hostBridge also skips a bridge that it cannot look up. Without a bridge, the caller accepts the
// addresses, which always works.
func hostBridge(r *plugin.Request, env *netstate.Env) (name string, has []netip.Addr) {
	links := r.Prev().Interfaces
	if len(links) == 0 || links[0].Name == "" || links[0].Sandbox != "" {
		return "", nil
	}
	name = links[0].Name
	link, err := env.Link(netstate.Host, name)
	if nl.IsNotFound(err) && r.Session.Dry != nil {
		return name, notYet(r.Prev())
	}
	if err != nil || link.Type() != "bridge" || link.Attrs().MasterIndex != 0 {
		return "", nil
	}
	addrs, err := env.Host.Addrs(link.Attrs().Index)
	if err != nil {
		return "", nil
	}
	for _, a := range addrs {
		has = append(has, a.Prefix.Addr())
	}
	return name, has
}

// notYet returns the addresses that a bridge will have after an ADD that is only explained.
// notYet includes the host link of the plugin bridge.
func notYet(prev *spec.Result) (has []netip.Addr) {
	if len(prev.Interfaces) < 3 || prev.Interfaces[1].Sandbox != "" {
		return nil
	}
	for _, ip := range prev.IPs {
		has = append(has, ip.Gateway)
	}
	return has
}

// asAttached plans to accept what the record of the ADD says. The bridge may have changed since
// the ADD.
func (p *plan) asAttached(k *kernel.Kernel, rec *record.Record) {
	var facts []record.Fact
	for _, name := range rec.Shared {
		if f, err := k.Records.Fact(name); err == nil && strings.HasPrefix(name, factAccept) {
			facts = append(facts, f)
		}
	}
	if len(facts)+len(rec.Accepts) > 0 {
		p.accepts, p.addresses = facts, rec.Accepts
	}
}
