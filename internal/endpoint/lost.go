// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nft/iptnft"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/traces"
	"github.com/patchbay-net/patchbay/plugin"
)

// A DEL whose record is lost finds what the ADD made by what the owner, the previous result and the configuration
// determine.

// lostConf is what a DEL whose record is lost reads of the configuration of bridge and ptp.
type lostConf struct {
	Outside     Outside `json:"ipMasqOutside"`
	MacSpoofChk bool    `json:"macspoofchk"` // of bridge
}

// lostConfOf returns nothing of a configuration that cannot be read, because it must not stop the removal.
func lostConfOf(r *plugin.Request) (conf lostConf) {
	if err := r.Decode(&conf); err != nil {
		return lostConf{}
	}
	return conf
}

// lostPair describes the veth pair for a DEL whose record is lost. The pair has its usual name. The
// MAC comes from the previous result, or, without one, from the owner.
func lostPair(r *plugin.Request) *Pair {
	p := &Pair{Owner: r.Owner, Host: r.Owner.LinkName(linkPrefix, 0), MAC: AddressesOf(kernel.Of(r), r.Owner).Container()}
	if r.Prev() == nil {
		return p
	}
	for _, i := range r.Prev().Interfaces {
		if mac, err := parseMAC(i); err == nil && i.Name == r.IfName && len(mac) == 6 {
			p.MAC = mac
		}
	}
	return p
}

// withoutRecord makes a record from what the owner alone determines: the names of links, and the
// facts that the owner holds. If the attachment's addresses are not known, withoutRecord also
// searches for the owner's elements. An attachment of the reference plugin has no record either,
// so withoutRecord also queues the removal of what the reference left in the firewall.
func withoutRecord(k *kernel.Kernel, r *plugin.Request, env *netstate.Env) *record.Record {
	comment, conf := Comment(r), lostConfOf(r)
	rec := &record.Record{}
	for n := range byte(candidates) {
		rec.Links = append(rec.Links, r.Owner.LinkName(linkPrefix, n))
	}
	var err error
	if rec.Shared, err = k.Records.FactsOf(r.Owner); err != nil {
		kernel.Warn(r, err)
	}
	var addrs []netip.Addr
	for _, a := range addresses(r, env) {
		addrs = append(addrs, a.Addr())
		k.Withdraw(&record.Record{Owner: r.Owner, Elements: lostMasquerade(a, conf.Outside, comment)})
	}
	if len(addrs) == 0 {
		all, err := k.Traces().Elements(traces.Scope{Owner: r.Owner})
		if err != nil {
			kernel.Warn(r, err)
		}
		rec.Elements = slices.DeleteFunc(all[r.Owner], func(e nft.Element) bool { return !e.OfInterface() })
	}
	k.NFT.Queue(iptnft.Leftovers(kernel.Attachment(r), addrs))
	if conf.MacSpoofChk {
		pair := lostPair(r)
		rec.Elements = append(rec.Elements, nft.CheckMAC(pair.Host, pair.MAC, comment)...)
	}
	return rec
}

// addresses returns the addresses of the previous result or, if there is none, of the interface.
func addresses(r *plugin.Request, env *netstate.Env) (addrs []netip.Prefix) {
	if prev := r.Prev(); prev != nil {
		for _, ip := range prev.IPs {
			addrs = append(addrs, ip.Address)
		}
		return addrs
	}
	if env.Sandbox == nil {
		return nil
	}
	link, err := env.Sandbox.Link(r.IfName)
	if err != nil {
		return nil
	}
	list, err := env.Sandbox.Addrs(link.Attrs().Index)
	if err != nil {
		return nil
	}
	for _, a := range list {
		if !a.Prefix.Addr().IsLinkLocalUnicast() {
			addrs = append(addrs, a.Prefix)
		}
	}
	return addrs
}

// lostMasquerade returns all elements that Masquerade and Egress may have made for an address.
// A DEL whose record is lost removes them.
func lostMasquerade(address netip.Prefix, outside Outside, comment string) []nft.Element {
	network, _ := outside.around(address)
	var own []netip.Prefix
	if network != address {
		own = []netip.Prefix{address}
	}
	egress := nft.Egress(address.Addr(), address.Addr(), comment) // whatever it leaves with
	return append(nft.Masqueraded(network, comment, own...), egress)
}
