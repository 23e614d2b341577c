// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"net/netip"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Outside is the key ipMasqOutside: prefixes that contain an address's network, such as
// that of a network over many hosts, which contains one host's part. Traffic that leaves
// the prefix around an address is masqueraded, rather than traffic that leaves the subnet.
type Outside []netip.Prefix

// Validate refuses strings that are no prefix.
func (o Outside) Validate() error {
	for _, p := range o {
		switch {
		case !p.IsValid() || p.Bits() == 0 || p.Addr().Is4In6():
			return spec.Invalid("invalid ipMasqOutside %q: want the prefix of a network, as 10.200.0.0/16", p)
		case p != p.Masked():
			return spec.Invalid("invalid ipMasqOutside %q: write %s", p, p.Masked())
		}
	}
	return nil
}

// around is an address with the length of the widest prefix that contains it, its own or a
// listed one.
func (o Outside) around(address netip.Prefix) (wide netip.Prefix, listed bool) {
	wide = address
	for _, p := range o {
		if !p.Contains(address.Addr()) {
			continue
		}
		if listed = true; p.Bits() < wide.Bits() {
			wide = netip.PrefixFrom(address.Addr(), p.Bits())
		}
	}
	return wide, listed
}

// Masquerade gives traffic that leaves the networks of the addresses the host's address:
// with all, for every address, else for those in a prefix of outside. It belongs to the
// attachment, so it does not affect other networks, neither one within its range nor one
// around it.
func Masquerade(ips []spec.IPConfig, all bool, outside Outside, comment string) (s netstate.State) {
	for _, ip := range ips {
		network, listed := outside.around(ip.Address)
		if !all && !listed {
			continue
		}
		for _, e := range nft.Masqueraded(network, comment) {
			s = append(s, netstate.Element{Element: e})
		}
	}
	return s
}

// lostMasquerade returns all elements that Masquerade may have made for an address, for a
// DEL whose record is lost.
func lostMasquerade(r *plugin.Request, address netip.Prefix) []nft.Element {
	var conf struct {
		Outside Outside `json:"ipMasqOutside"`
	}
	if err := r.Decode(&conf); err != nil {
		conf.Outside = nil // a configuration that became invalid must not stop the removal
	}
	network, _ := conf.Outside.around(address)
	if network == address {
		return nft.Masqueraded(address, Comment(r))
	}
	return nft.Masqueraded(network, Comment(r), address)
}

// factMasquerade is the prefix of the facts that schema 1 of the firewall used instead,
// followed by the subnet.
const factMasquerade = "masquerade-"
