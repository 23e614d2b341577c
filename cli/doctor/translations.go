// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nft/eval"
	"github.com/patchbay-net/patchbay/internal/services"
)

// foreignTranslations finds rules of other programs that translate the destination of packets to a frontend, before or beside Services. The
// first translation of a connection is the only one.
func foreignTranslations(n *Node, t services.Table) (found []Finding, err error) {
	tables, err := n.natTables()
	at := index(t)
	seen := make(map[string]bool)
	for _, table := range tables {
		for _, f := range at.mentioned(table) {
			list, terr := translators(table, f, t)
			err = errors.Join(err, terr)
			for _, rule := range list {
				what := fmt.Sprintf("%s of %s translates packets to %s, which is a Service's", rule, table, named1(f))
				if !seen[what] {
					seen[what] = true
					found = append(found, problem(what+", and may do so first", "remove the rule, for example by publishing another port, or give the Service another address or node port"))
				}
			}
		}
	}
	return found, err
}

// prioServices is the priority of Services' chains: dstnat.
const prioServices = -100

// natTables reads the tables of other programs that translate destinations no later than Services.
func (n *Node) natTables() ([]*nft.Table, error) {
	return n.Kernel.NFT.ReadRunning(func(t *nft.Table) bool {
		known := t.Name == nft.ServicesTable || t.Name == nft.TableName || t.Name == "kube-proxy"
		return !known && slices.ContainsFunc(t.Chains, translatesFirst)
	})
}

func translatesFirst(c nft.Chain) bool {
	return c.Base && c.Type == "nat" && c.Prio <= prioServices && (c.Hook == *nftables.ChainHookPrerouting || c.Hook == *nftables.ChainHookOutput)
}

// frontendIndex finds frontends by bytes with which rules compare: an address, or the port of a node port.
type frontendIndex map[string][]services.Frontend

func index(t services.Table) frontendIndex {
	at := make(frontendIndex)
	for _, f := range t.Frontends() {
		at[keyOf(f)] = append(at[keyOf(f)], f)
	}
	return at
}

// keyOf returns the bytes that a rule about a frontend compares with.
func keyOf(f services.Frontend) string {
	if f.Addr.IsUnspecified() {
		return string(portBytes(f.Port))
	}
	return string(f.Addr.AsSlice())
}

func portBytes(port uint16) []byte { return binary.BigEndian.AppendUint16(nil, port) }

// about reports whether a rule mentions a frontend. eval does not know the ports of iptables' matches.
func about(t *nft.Table, r nft.Rule, f services.Frontend) bool {
	for _, e := range r.Exprs {
		if e.Name == "match" {
			if ports := portsOfMatch(e); len(ports) > 0 && string(ports[0]) != string(portBytes(f.Port)) {
				return false
			}
		}
	}
	return slices.ContainsFunc(mentions(t, r), func(value []byte) bool { return string(value) == keyOf(f) })
}

// mentioned returns the frontends that rules of a table with a translation mention. Rules of kube-proxy are left out: another finding is about
// them.
func (at frontendIndex) mentioned(t *nft.Table) (list []services.Frontend) {
	found := make(map[services.Frontend]bool)
	for chain, rules := range t.Rules {
		for _, r := range rules {
			if !translates(r) || strings.HasPrefix(chain, "KUBE-") {
				continue
			}
			for _, value := range mentions(t, r) {
				for _, f := range at[string(value)] {
					found[f] = true
				}
			}
		}
	}
	for f := range found {
		list = append(list, f)
	}
	slices.SortFunc(list, services.Frontend.Compare)
	return list
}

// mentions returns the values with which a rule compares, and the first fields of the keys of its sets.
func mentions(t *nft.Table, r nft.Rule) (values [][]byte) {
	values = r.Compared()
	for _, e := range r.Exprs {
		if e.Name == "match" { // of iptables: the port is in its data
			values = append(values, portsOfMatch(e)...)
		}
		if e.Name != "lookup" {
			continue
		}
		members, _ := t.Members(e.Text(unix.NFTA_LOOKUP_SET)) // a set that cannot be read mentions nothing; eval says so of a packet
		for _, m := range members {
			for _, size := range []int{2, 4, 16} {
				values = append(values, m.Low[:min(size, len(m.Low))])
			}
			if len(m.Low) >= 6 { // protocol . port
				values = append(values, m.Low[4:6])
			}
		}
	}
	return values
}

// portsOfMatch returns the destination ports of iptables' matches tcp and udp: struct xt_tcp and xt_udp begin with two ranges of ports in the
// host's byte order (linux/netfilter/xt_tcpudp.h).
func portsOfMatch(e nft.Expr) [][]byte {
	info := e.Attr(unix.NFTA_MATCH_INFO)
	if name := e.Text(unix.NFTA_MATCH_NAME); name != "tcp" && name != "udp" || len(info) < 8 {
		return nil
	}
	low, high := binary.NativeEndian.Uint16(info[4:]), binary.NativeEndian.Uint16(info[6:])
	if low != high {
		return nil
	}
	return [][]byte{portBytes(low)}
}

// translates reports whether a rule changes the destination of packets.
func translates(r nft.Rule) bool {
	return slices.ContainsFunc(r.Exprs, func(e nft.Expr) bool {
		switch e.Name {
		case "redir":
			return true
		case "nat":
			return e.Number(unix.NFTA_NAT_TYPE) == unix.NFT_NAT_DNAT
		case "target":
			return slices.Contains([]string{"DNAT", "REDIRECT"}, e.Text(unix.NFTA_TARGET_NAME))
		}
		return false
	})
}

// translators returns the rules of a table that translate packets from outside to a frontend, or may do so.
func translators(t *nft.Table, f services.Frontend, of services.Table) (rules []string, err error) {
	to := []netip.Addr{f.Addr}
	if f.Addr.IsUnspecified() {
		to = slices.DeleteFunc(of.Addresses(services.NodeAddress), func(a netip.Addr) bool { return a.Is6() != f.Addr.Is6() })
	}
	v6 := f.Addr.Is6()
	if t.Family == nftables.TableFamilyIPv4 && v6 || t.Family == nftables.TableFamilyIPv6 && !v6 {
		return nil, nil
	}
	for _, base := range t.Chains {
		if !translatesFirst(base) {
			continue
		}
		for _, a := range to {
			path, perr := eval.Through(t, base, eval.Packet{V6: v6, To: a, Protocol: uint8(f.Protocol), Port: f.Port})
			err = cmp.Or(err, perr)
			for _, s := range path.Steps {
				if translates(s.Rule) && about(t, s.Rule, f) && !strings.HasPrefix(s.Chain, "KUBE-") && !slices.Contains(rules, s.String()) {
					rules = append(rules, s.String())
				}
			}
		}
	}
	return rules, err
}
