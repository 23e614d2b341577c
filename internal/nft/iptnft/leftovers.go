// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package iptnft

import (
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"

	"github.com/patchbay-net/patchbay/internal/nft"
)

// These are names that the reference plugins v1.9.1 use. Sources: pkg/utils/utils.go,
// pkg/ip/ipmasq_nftables_linux.go, plugins/meta/portmap, pkg/link/spoofcheck.go.
const (
	tableNAT          = "nat"
	chainPostrouting  = "POSTROUTING"
	chainPrerouting   = "PREROUTING"
	chainHostportDNAT = "CNI-HOSTPORT-DNAT"
	chainHostportSNAT = "CNI-HOSTPORT-SNAT" // only before v0.8
	tableHostport     = "cni_hostport"
	tableMasquerade   = "cni_plugins_masquerade"
	chainMasqChecks   = "masq_checks"
	chainLength       = 28
)

// Names has the fields from which the reference derives its names.
type Names struct {
	Network, ContainerID, IfName string
}

func hash(s string) string {
	sum := sha512.Sum512([]byte(s))
	return hex.EncodeToString(sum[:])
}

// chainName returns the name of a chain in the nat table. The name does not depend on the
// interface.
func (a Names) chainName(prefix string) string {
	return ("CNI-" + prefix + hash(a.Network+a.ContainerID))[:chainLength]
}

// masqHash returns the beginning of the comments in masq_checks.
func (a Names) masqHash() string {
	return hash(a.Network)[:16] + "-" + hash(a.IfName + ":" + a.ContainerID)[:16]
}

func (a Names) spoofChain() string { return "cni-br-iface-" + a.ContainerID + "-" + a.IfName }

// Leftovers removes what the reference plugins bridge, ptp, portmap and firewall made for an
// attachment, in iptables-nft and in their own nftables tables. So a container that was attached
// before the switch to Patchbay leaves nothing behind. addrs are the attachment's addresses from
// prevResult or from the files of host-local, if known. Rules of the firewall plugin name no
// owner, so only the addresses identify them. Known addresses also protect the rules of another
// attachment of the same container. On a node without leftovers, Leftovers costs only one query.
func Leftovers(a Names, addrs []netip.Addr) nft.Extra { return leftovers{a, addrs} }

// Present reports whether a table exists that may contain leftovers. Present asks the kernel only
// once. A kernel without nftables has no table.
func Present(c *nft.Conn) (bool, error) {
	refs := []nft.Ref{{Family: nftables.TableFamilyINet, Table: tableMasquerade}, {Family: nftables.TableFamilyBridge, Table: tableNAT}}
	for _, f := range families() {
		for _, table := range [...]string{tableNAT, tableHostport, tableFilter} {
			refs = append(refs, nft.Ref{Family: f, Table: table})
		}
	}
	got, err := c.ReadPresence(refs...)
	if err != nil && c.Absent() {
		return false, nil
	}
	return slices.ContainsFunc(got, func(p nft.Presence) bool { return p.Found }), err
}

type leftovers struct {
	Names
	addrs []netip.Addr
}

// String names the attachment.
func (l leftovers) String() string {
	return fmt.Sprintf("remove what the reference plugins left for %s/%s/%s", l.Network, l.ContainerID, l.IfName)
}

// place is one kind of leftover. It has the chain that may contain such leftovers, and the
// function that removes them.
type place struct {
	ref  nft.Ref
	plan func(*nft.Conn, nft.Ref) ([]step, error)
}

// Plan examines all places with one query.
func (l leftovers) Plan(c *nft.Conn) (func(*nftables.Conn) error, error) {
	places := l.places()
	refs := make([]nft.Ref, len(places))
	for i, p := range places {
		refs[i] = p.ref
	}
	got, err := c.ReadPresence(refs...)
	if err != nil {
		return nil, err
	}
	var todo []step
	for i, p := range places {
		if !got[i].Found {
			continue
		}
		steps, err := p.plan(c, p.ref)
		if err != nil {
			return nil, err
		}
		todo = append(todo, steps...)
	}
	return run(todo), nil
}

func (l leftovers) places() []place {
	all := []place{
		{nft.Ref{Family: nftables.TableFamilyINet, Table: tableMasquerade, Chain: chainMasqChecks}, l.masquerade},
		{nft.Ref{Family: nftables.TableFamilyBridge, Table: tableNAT, Chain: l.spoofChain()}, l.spoof},
	}
	for _, f := range families() {
		all = append(all,
			place{nft.Ref{Family: f, Table: tableNAT, Chain: l.chainName("")}, l.natChain(chainPostrouting)},
			place{nft.Ref{Family: f, Table: tableNAT, Chain: l.chainName("DN-")}, l.natChain(chainHostportDNAT)},
			place{nft.Ref{Family: f, Table: tableNAT, Chain: l.chainName("SN-")}, l.natChain(chainHostportSNAT)},
			place{nft.Ref{Family: f, Table: tableHostport}, l.hostport})
		if len(l.addrs) > 0 {
			all = append(all, place{nft.Ref{Family: f, Table: tableFilter, Chain: chainCNIForward}, l.forward})
		}
	}
	return all
}

// mine reports whether a rule concerns one of the addresses. If the addresses are not known, mine
// returns true.
func (l leftovers) mine(r nft.Rule) bool {
	return len(l.addrs) == 0 || l.mentioned(r)
}

func (l leftovers) mentioned(r nft.Rule) bool {
	return slices.ContainsFunc(l.addrs, func(a netip.Addr) bool { return r.Mentions(a.Unmap().AsSlice()) })
}

// natChain removes the container's chain and the rules that jump to it. The interfaces of a
// container in one network share the masquerade chain. So natChain removes that chain only with
// the last jump.
func (l leftovers) natChain(entry string) func(*nft.Conn, nft.Ref) ([]step, error) {
	return func(c *nft.Conn, ref nft.Ref) ([]step, error) {
		rules, err := c.ListRules(ref.Family, ref.Table, entry)
		if err != nil {
			return nil, err
		}
		t := &nftables.Table{Name: ref.Table, Family: ref.Family}
		entries := slices.DeleteFunc(rules, func(r nft.Rule) bool { return !r.JumpsTo(ref.Chain) })
		removed := entries
		if entry == chainPostrouting {
			removed = slices.DeleteFunc(slices.Clone(entries), func(r nft.Rule) bool { return !l.mine(r) })
		}
		todo := deleteRules(t, entry, removed)
		if len(removed) == len(entries) {
			todo = append(todo, dropChain(t, ref.Chain)...)
		}
		return todo, nil
	}
}

// masquerade removes the rules whose comment has the attachment's hash.
func (l leftovers) masquerade(c *nft.Conn, ref nft.Ref) ([]step, error) {
	return deleteWhere(c, ref, func(r nft.Rule) bool { return strings.HasPrefix(r.Comment(), l.masqHash()) })
}

// hostport removes the rules whose comment is the container's id. The reference would remove the
// rules of all attachments of the container. hostport keeps rules for other addresses.
func (l leftovers) hostport(c *nft.Conn, ref nft.Ref) (todo []step, err error) {
	for _, chainName := range [...]string{"hostports", "hostip_hostports", "masquerading"} {
		ref.Chain = chainName
		steps, err := deleteWhere(c, ref, func(r nft.Rule) bool { return r.Comment() == l.ContainerID && l.mine(r) })
		if err != nil {
			return nil, err
		}
		todo = append(todo, steps...)
	}
	return todo, nil
}

// spoof removes both chains of macspoofchk and the jump to them.
func (l leftovers) spoof(c *nft.Conn, ref nft.Ref) ([]step, error) {
	from := ref
	from.Chain = chainPrerouting
	todo, err := deleteWhere(c, from, func(r nft.Rule) bool { return r.JumpsTo(ref.Chain) })
	if err != nil {
		return nil, err
	}
	t := &nftables.Table{Name: ref.Table, Family: ref.Family}
	todo = append(todo, dropChain(t, ref.Chain)...)
	mac, err := c.HasChain(ref.Family, ref.Table, ref.Chain+"-mac")
	if err == nil && mac {
		todo = append(todo, dropChain(t, ref.Chain+"-mac")...)
	}
	return todo, err
}

// forward removes the two rules that the firewall plugin made for each address.
func (l leftovers) forward(c *nft.Conn, ref nft.Ref) ([]step, error) {
	return deleteWhere(c, ref, func(r nft.Rule) bool {
		code, _, ok := r.Verdict()
		return ok && code == verdictAccept && l.mentioned(r) && !strings.HasPrefix(r.Comment(), commentAccept)
	})
}

const verdictAccept = 1 // NF_ACCEPT

// deleteWhere plans the deletion of those rules of the chain that the function is selects.
func deleteWhere(c *nft.Conn, ref nft.Ref, is func(nft.Rule) bool) ([]step, error) {
	rules, err := c.ListRules(ref.Family, ref.Table, ref.Chain)
	if err != nil {
		return nil, err
	}
	rules = slices.DeleteFunc(rules, func(r nft.Rule) bool { return !is(r) })
	return deleteRules(&nftables.Table{Name: ref.Table, Family: ref.Family}, ref.Chain, rules), nil
}

// Sweep removes what the reference plugins left for attachments of a network. It leaves valid
// attachments alone. GC uses it. Sweep lists the chains of the reference, so its cost grows with
// their number. It keeps rules that name neither a network nor an attachment: those of
// cni_hostport (whose comment is only the container's id), of macspoofchk and of the firewall
// plugin.
func Sweep(network string, valid []Names) nft.Extra { return sweep{network, valid} }

type sweep struct {
	network string
	valid   []Names
}

// String names the network.
func (s sweep) String() string {
	return "remove what the reference plugins left for dead attachments of " + s.network
}

// Plan reads the nat tables and masq_checks.
func (s sweep) Plan(c *nft.Conn) (func(*nftables.Conn) error, error) {
	keep := make(map[string]bool)
	for _, a := range s.valid {
		a.Network = s.network
		keep[a.ContainerID], keep[a.masqHash()] = true, true
	}
	prefix := hash(s.network)[:16] + "-"
	ref := nft.Ref{Family: nftables.TableFamilyINet, Table: tableMasquerade, Chain: chainMasqChecks}
	todo, err := deleteWhere(c, ref, func(r nft.Rule) bool {
		mark, _, _ := strings.Cut(r.Comment(), ",")
		return strings.HasPrefix(mark, prefix) && !keep[mark]
	})
	if err != nil {
		return nil, err
	}
	for _, f := range families() {
		steps, err := s.nat(c, f, keep)
		if err != nil {
			return nil, err
		}
		todo = append(todo, steps...)
	}
	return run(todo), nil
}

// nat finds the jumps whose comment names the network and a container without a valid
// attachment.
func (s sweep) nat(c *nft.Conn, f nftables.TableFamily, keep map[string]bool) (todo []step, err error) {
	t := &nftables.Table{Name: tableNAT, Family: f}
	dropped := make(map[string]bool)
	for _, entry := range [...]string{chainPostrouting, chainHostportDNAT} {
		rules, err := c.ListRules(f, tableNAT, entry)
		if err != nil {
			return nil, err
		}
		for _, r := range rules {
			a, ok := ParseComment(r.Comment())
			if !ok || a.Network != s.network || keep[a.ContainerID] {
				continue
			}
			todo = append(todo, deleteRules(t, entry, []nft.Rule{r})...)
			if _, to, _ := r.Verdict(); strings.HasPrefix(to, "CNI-") {
				dropped[to] = true
			}
		}
	}
	for name := range dropped {
		todo = append(todo, dropChain(t, name)...)
	}
	return todo, nil
}
