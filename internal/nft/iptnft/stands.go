// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package iptnft

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"

	"github.com/patchbay-net/patchbay/internal/nft"
)

// Made is what a reference plugin made for an attachment: its rules in iptables-nft or
// in its own nftables tables.
type Made struct {
	table string // of iptables
	addrs []netip.Addr
	has   func(*nft.Conn, netip.Addr) (bool, error)
}

// Stands reports whether the rules of every address exist and are reached. Where
// iptables-legacy has the table in use, the rules may be there; Stands does not look and
// returns true. proc is where procfs is mounted.
func (m Made) Stands(c *nft.Conn, proc string) (bool, error) {
	legacy, err := LegacyTables(proc)
	if err != nil {
		return false, err
	}
	for _, a := range m.addrs {
		if slices.Contains(legacy, protocolOf(a)+" "+m.table) {
			continue
		}
		if ok, err := m.has(c, a.Unmap()); !ok || err != nil {
			return false, err
		}
	}
	return len(m.addrs) > 0, nil
}

// Masquerading is what the reference's bridge and ptp made with ipMasq.
func (a Attachment) Masquerading(addrs []netip.Addr) Made {
	return Made{tableNAT, addrs, a.masquerades}
}

// Publishing is what the reference's portmap made; ports returns how many ports of an
// address it publishes.
func (a Attachment) Publishing(addrs []netip.Addr, ports func(netip.Addr) int) Made {
	return Made{tableNAT, addrs, func(c *nft.Conn, addr netip.Addr) (bool, error) { return a.publishes(c, addr, ports(addr)) }}
}

// Accepting is what the reference's firewall made.
func Accepting(addrs []netip.Addr) Made { return Made{tableFilter, addrs, accepts} }

func (a Attachment) masquerades(c *nft.Conn, addr netip.Addr) (bool, error) {
	in := rules{c: c, family: nftables.TableFamilyINet, table: tableMasquerade}
	if in.count("postrouting", jumpsTo(chainMasqChecks)) > 0 && in.count(chainMasqChecks, func(r nft.Rule) bool {
		return strings.HasPrefix(r.Comment(), a.masqHash()) && r.Mentions(addr.AsSlice())
	}) > 0 {
		return true, in.err
	}
	chain := a.chainName("")
	in = rules{c: c, family: familyOf(addr), table: tableNAT, err: in.err}
	return in.count(chain, whatever) > 0 && in.count(chainPostrouting, func(r nft.Rule) bool {
		return r.JumpsTo(chain) && r.Mentions(addr.AsSlice())
	}) > 0, in.err
}

func (a Attachment) publishes(c *nft.Conn, addr netip.Addr, ports int) (bool, error) {
	if ports == 0 {
		return true, nil
	}
	in := rules{c: c, family: familyOf(addr), table: tableHostport}
	mine := func(r nft.Rule) bool { return r.Comment() == a.ContainerID && r.Mentions(addr.AsSlice()) }
	if in.count("prerouting", whatever) > 0 && in.count("hostports", mine)+in.count("hostip_hostports", mine) >= ports {
		return true, in.err
	}
	chain := a.chainName("DN-")
	in = rules{c: c, family: familyOf(addr), table: tableNAT, err: in.err}
	return in.count(chainPrerouting, jumpsTo(chainHostportDNAT)) > 0 && in.count(chainHostportDNAT, jumpsTo(chain)) > 0 &&
		in.count(chain, translates) >= ports, in.err
}

func accepts(c *nft.Conn, addr netip.Addr) (bool, error) {
	in := rules{c: c, family: familyOf(addr), table: tableFilter}
	return in.count(chainForward, jumpsTo(chainCNIForward)) > 0 && in.count(chainCNIForward, func(r nft.Rule) bool {
		code, _, ok := r.Verdict()
		return ok && code == verdictAccept && r.Mentions(addr.AsSlice())
	}) > 0, in.err
}

// rules counts the rules of one table, up to the first error.
type rules struct {
	c      *nft.Conn
	family nftables.TableFamily
	table  string
	err    error
}

func (in *rules) count(chain string, is func(nft.Rule) bool) (n int) {
	if in.err != nil {
		return 0
	}
	var list []nft.Rule
	list, in.err = in.c.ListRules(in.family, in.table, chain)
	for _, r := range list {
		if is(r) {
			n++
		}
	}
	return n
}

func whatever(nft.Rule) bool { return true }

func jumpsTo(chain string) func(nft.Rule) bool {
	return func(r nft.Rule) bool { return r.JumpsTo(chain) }
}

func translates(r nft.Rule) bool { return r.Has("target", "DNAT") || r.Has("nat", "") }

func familyOf(a netip.Addr) nftables.TableFamily {
	if a.Is4() {
		return nftables.TableFamilyIPv4
	}
	return nftables.TableFamilyIPv6
}

// protocolOf is the family's name in LegacyTables.
func protocolOf(a netip.Addr) string {
	if a.Unmap().Is4() {
		return "ip"
	}
	return "ip6"
}
