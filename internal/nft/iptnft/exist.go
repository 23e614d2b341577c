// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package iptnft

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"

	"github.com/patchbay-net/patchbay/internal/nft"
)

// Made describes what a reference plugin made for an attachment, in iptables-nft or in the
// plugin's own nftables tables.
type Made struct {
	table string // table of iptables
	addrs []netip.Addr
	has   func(*nft.Conn, netip.Addr) (bool, error)
}

// Exist reports whether the rules of every address exist and are reached. If the table is in
// use in iptables-legacy, the rules may be in it; then Exist returns true without a check.
// proc is the path of procfs.
func (m Made) Exist(c *nft.Conn, proc string) (bool, error) {
	legacy, err := LegacyTables(proc)
	if err != nil {
		return false, err
	}
	for _, a := range m.addrs {
		if slices.Contains(legacy, nft.FamilyName(familyOf(a.Unmap()))+" "+m.table) {
			continue
		}
		if ok, err := m.has(c, a.Unmap()); !ok || err != nil {
			return false, err
		}
	}
	return len(m.addrs) > 0, nil
}

// Masquerading returns what the reference's bridge and ptp make for ipMasq.
func (a Names) Masquerading(addrs []netip.Addr) Made {
	return Made{tableNAT, addrs, a.masquerades}
}

// Publishing returns what the reference's portmap makes. ports returns the number of ports that
// portmap publishes for an address.
func (a Names) Publishing(addrs []netip.Addr, ports func(netip.Addr) int) Made {
	return Made{tableNAT, addrs, func(c *nft.Conn, addr netip.Addr) (bool, error) { return a.publishes(c, addr, ports(addr)) }}
}

// Accepting returns what the reference's firewall plugin makes for addrs: a rule for each
// address in CNI-FORWARD that accepts it. FORWARD jumps to CNI-FORWARD.
func Accepting(addrs []netip.Addr) Made { return Made{tableFilter, addrs, accepts} }

func (a Names) masquerades(c *nft.Conn, addr netip.Addr) (bool, error) {
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

func (a Names) publishes(c *nft.Conn, addr netip.Addr, ports int) (bool, error) {
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

// rules counts the rules of one table. rules stops at the first error.
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

// Named returns the attachments that rules of the reference plugins name in their comments,
// each once (pkg/utils/utils.go and pkg/ip/ipmasq_nftables_linux.go of v1.9.1). Rules in
// iptables do not name the interface, so IfName is empty. Named skips comments that were cut.
func Named(c *nft.Conn) (list []Names, err error) {
	read := func(f nftables.TableFamily, table, chain string, parse func(string) (Names, bool)) {
		rules, rerr := c.ListRules(f, table, chain)
		if rerr != nil {
			err = rerr
		}
		for _, r := range rules {
			if a, ok := parse(r.Comment()); ok && !slices.Contains(list, a) {
				list = append(list, a)
			}
		}
	}
	read(nftables.TableFamilyINet, tableMasquerade, chainMasqChecks, parseMasq)
	for _, f := range families() {
		read(f, tableNAT, chainPostrouting, ParseComment)
		read(f, tableNAT, chainHostportDNAT, ParseComment)
	}
	return list, err
}

// ParseComment reads a comment of the form `name: "NET" id: "ID"` or `dnat name: "NET" id: "ID"`.
func ParseComment(s string) (a Names, ok bool) {
	rest, ok := strings.CutPrefix(strings.TrimPrefix(s, "dnat "), `name: "`)
	if !ok {
		return a, false
	}
	if a.Network, rest, ok = strings.Cut(rest, `" id: "`); !ok {
		return a, false
	}
	a.ContainerID, ok = strings.CutSuffix(rest, `"`)
	return a, ok
}

// parseMasq reads `HASH-HASH, net: NET, if: IF, id: ID`. The hashes show whether the comment
// is complete.
func parseMasq(s string) (a Names, ok bool) {
	mark, rest, ok := strings.Cut(s, ", net: ")
	if !ok {
		return a, false
	}
	if a.Network, rest, ok = strings.Cut(rest, ", if: "); !ok {
		return a, false
	}
	a.IfName, a.ContainerID, ok = strings.Cut(rest, ", id: ")
	return a, ok && a.masqHash() == mark
}

// LegacyChains returns the names of the chains that the reference's portmap and masquerade
// make for an attachment in the nat table. iptables-legacy has the same names.
func (a Names) LegacyChains() []string {
	return []string{a.chainName(""), a.chainName("DN-"), a.chainName("SN-")}
}

// Forwarded returns the single addresses that the reference's firewall plugin accepts in
// CNI-FORWARD, each once. These rules contain nothing but the address.
func Forwarded(c *nft.Conn) (addrs []netip.Addr, err error) {
	for _, f := range families() {
		rules, err := c.ListRules(f, tableFilter, chainCNIForward)
		if err != nil {
			return nil, err
		}
		for _, r := range rules {
			if a, ok := acceptsOne(r, f); ok && !slices.Contains(addrs, a) {
				addrs = append(addrs, a)
			}
		}
	}
	return addrs, nil
}

// acceptsOne reads a rule of the form `-s A/32 -j ACCEPT` or `-d A/32 … -j ACCEPT`. A shorter
// prefix is no single address; acceptsOne recognises it by a mask or by fewer compared bytes.
func acceptsOne(r nft.Rule, f nftables.TableFamily) (a netip.Addr, ok bool) {
	code, _, ends := r.Verdict()
	if !ends || code != verdictAccept || r.Has("bitwise", "") || strings.HasPrefix(r.Comment(), commentAccept) {
		return a, false
	}
	values := r.Compared()
	if len(values) != 1 {
		return a, false
	}
	a, ok = netip.AddrFromSlice(values[0])
	return a, ok && a.Is4() == (f == nftables.TableFamilyIPv4)
}

// Forget removes the rules in CNI-FORWARD that accept one address.
func Forget(a netip.Addr) nft.Extra { return forget{leftovers{addrs: []netip.Addr{a}}} }

type forget struct{ leftovers }

// String names the address.
func (x forget) String() string {
	return fmt.Sprintf("remove what the reference plugin firewall accepts of %s", x.addrs[0])
}

// Plan looks at the tables of both families. The address belongs to one of them.
func (x forget) Plan(c *nft.Conn) (func(*nftables.Conn) error, error) {
	var todo []step
	for _, f := range families() {
		steps, err := x.forward(c, nft.Ref{Family: f, Table: tableFilter, Chain: chainCNIForward})
		if err != nil {
			return nil, err
		}
		todo = append(todo, steps...)
	}
	return run(todo), nil
}
