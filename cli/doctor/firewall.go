// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nft/eval"
	"github.com/patchbay-net/patchbay/internal/nft/iptnft"
	"github.com/patchbay-net/patchbay/internal/order"
	"github.com/patchbay-net/patchbay/internal/record"
)

// ourTable compares our firewall tables with what this program writes into them. It also looks
// up the elements that the records of living attachments list.
func ourTable(ctx context.Context, n *Node) (found []Finding, err error) {
	const repair = "patchbay repair; docs/cli.md has a hook that calls it when the firewall restarts"
	fw := n.Kernel.NFT
	var newer *nft.NewerSchemaError
	if err := fw.Status(); errors.As(err, &newer) {
		return []Finding{problem(err.Error(), "install the newer patchbay again, or remove the table when no container is left")}, nil
	}
	diffs, err := fw.Verify()
	if err != nil {
		return nil, err
	}
	if len(diffs) > 0 {
		found = append(found, problem(fmt.Sprintf("our firewall tables were changed (%d differences): %s", len(diffs), some(diffs)), repair))
	}
	older, err := fw.Outdated()
	if err != nil {
		return found, err
	}
	if older != "" {
		found = append(found, warning(older+": until then its rules are those of the earlier release", "patchbay repair; the next ADD or DEL that needs the table does it too"))
	}
	more, err := n.missing(ctx)
	found = append(found, more...)
	nobodys, oerr := fw.Ownerless()
	for _, e := range nobodys[:min(len(nobodys), mostNamed)] {
		found = append(found, warning(fmt.Sprintf("the table inet patchbay has an element that no attachment made, which is in effect: %s", e),
			"nft 'delete element inet patchbay %s'", e.KeyText()))
	}
	return found, errors.Join(err, oerr)
}

// otherDrops looks for other programs' firewalls that drop traffic which our table accepts. An
// accept in one table does not overrule a drop in another.
func otherDrops(_ context.Context, n *Node) (found []Finding, err error) {
	if len(n.Networks) == 0 && len(n.records()) == 0 {
		return nil, nil
	}
	for _, check := range [...]func(*Node) ([]Finding, error){iptablesDrops, foreignDrops, ruleDrops, legacyDrops} {
		more, cerr := check(n)
		found, err = append(found, more...), errors.Join(err, cerr)
	}
	return found, err
}

// iptablesDrops finds networks whose traffic iptables-nft drops. The plugin firewall adds rules
// there that accept its network. A network without this plugin has no such rules.
func iptablesDrops(n *Node) (found []Finding, err error) {
	n.cut = make(map[string]bool)
	for _, net := range n.Networks {
		if !net.routes() {
			continue
		}
		firewalled := slices.ContainsFunc(net.Members, func(m Member) bool { return m.Type == "firewall" })
		if firewalled && !slices.ContainsFunc(n.records(), func(r *record.Record) bool { return r.Network == net.Name && r.Plugin == "firewall" }) {
			continue // the first ADD adds the accepting rule
		}
		cut, unsure, cerr := n.cutIn(net)
		err = errors.Join(err, cerr)
		if n.cut[net.Name] = len(cut) > 0; n.cut[net.Name] {
			found = append(found, problem(
				fmt.Sprintf("iptables (nftables form) drops forwarded traffic and nothing accepts that of network %s (%s)", net.Name, strings.Join(cut, ", ")),
				`add {"type": "firewall"} to the plugins of the network and attach its containers again; if it is there, patchbay repair`))
		} else if len(unsure) > 0 {
			found = append(found, warning(
				fmt.Sprintf("iptables (nftables form) drops forwarded traffic, and may not accept all of network %s (%s)", net.Name, strings.Join(unsure, ", ")),
				`accept the subnet, with and without an interface; or add {"type": "firewall"} to the plugins of the network and attach its containers again; if it is there, patchbay repair`))
		}
	}
	return found, err
}

// cutIn returns the subnets of a network that FORWARD certainly drops, and those that it may
// drop. An operator's rule that accepts a subnet counts, as a rule of the plugin does.
func (n *Node) cutIn(net *Network) (cut, unsure []string, err error) {
	for admin, sources := range n.sources(net) {
		for _, x := range sources {
			todo, perr := iptnft.Accept([]iptnft.Source{x}, admin).Plan(n.Kernel.NFT)
			if err = errors.Join(err, perr); perr != nil || todo == nil {
				continue
			}
			passed, perr := iptnft.Passed(n.Kernel.NFT, []iptnft.Source{x})
			err = errors.Join(err, perr)
			switch {
			case perr != nil:
			case passed == eval.No:
				cut = append(cut, x.Subnet.String())
			case passed == eval.Perhaps:
				unsure = append(unsure, x.Subnet.String())
			}
		}
	}
	return cut, unsure, err
}

// routes reports whether the host forwards packets for the network.
func (n *Network) routes() bool {
	return slices.ContainsFunc(n.Members, func(m Member) bool { return m.Type == "bridge" && !m.internal() || m.Type == "ptp" })
}

// sources returns the subnets that iptables must accept, by the name of the operator's chain. It
// takes them from the facts of the network's attachments. If there are none, it takes them from
// the configuration. It leaves out single addresses, because ourTable checks them.
func (n *Node) sources(net *Network) map[string][]iptnft.Source {
	out := make(map[string][]iptnft.Source)
	seen := make(map[string]bool)
	single := false
	for _, r := range n.records() {
		if r.Network != net.Name || r.Plugin != "firewall" {
			continue
		}
		single = single || len(r.Accepts) > 0
		for _, name := range r.Shared {
			f, err := n.Kernel.Records.Fact(name)
			if err == nil && len(f.Accepts) > 0 && !seen[name] {
				seen[name] = true
				out[f.AdminChain] = append(out[f.AdminChain], netstate.Sources(f, f.Accepts...)...)
			}
		}
	}
	if len(out) == 0 && !single {
		out[""] = iptnft.On(net.link(), net.subnets()...)
	}
	return out
}

// foreignDrops finds two other kinds of firewalls that drop. One is a forward chain with the
// policy drop in another nftables table. The other is firewalld, which rejects addresses that are
// in no zone.
func foreignDrops(n *Node) (found []Finding, err error) {
	drops, err := n.forwardDrops()
	for _, d := range drops {
		if d.name == "ip filter FORWARD" || d.name == "ip6 filter FORWARD" {
			continue // iptablesDrops covers this chain
		}
		if n.allPass(d) {
			continue
		}
		found = append(found, warning(
			fmt.Sprintf("the nftables chain %s drops forwarded traffic by policy: an accept of ours does not overrule that", d.name),
			"nft insert rule %s ip saddr SUBNET accept, and the same with ip daddr and ct state established,related; or make its policy accept", d.name))
	}
	got, lerr := n.Kernel.NFT.ReadPresence(nft.Ref{Family: nftables.TableFamilyINet, Table: "firewalld"})
	if err = errors.Join(err, lerr); lerr == nil && got[0].Found && !n.inZone() {
		found = append(found, warning("firewalld is running, and no container is in one of its zones: it rejects traffic of addresses that are in no zone",
			`add {"type": "firewall"} to the networks, or firewall-cmd --permanent --zone=trusted --add-source=SUBNET`))
	}
	return found, err
}

// inZone reports whether an attachment has an address in a zone of firewalld.
func (n *Node) inZone() bool {
	return slices.ContainsFunc(n.records(), func(r *record.Record) bool { return slices.ContainsFunc(r.Sources, netip.Prefix.IsValid) })
}

// forwardDrops lists the base chains at the forward hook of IP whose policy is drop.
func (n *Node) forwardDrops() (found []forwardDrop, err error) {
	tables, err := n.Kernel.NFT.ReadRunning(func(t *nft.Table) bool { return len(dropChains(t)) > 0 })
	for _, t := range tables {
		for _, c := range dropChains(t) {
			found = append(found, forwardDrop{nft.FamilyName(t.Family) + " " + t.Name + " " + c.Name, t, c})
		}
	}
	order.By(found, func(a, b forwardDrop) int { return strings.Compare(a.name, b.name) })
	return found, err
}

// forwardDrop is a base chain at the forward hook whose policy is drop.
type forwardDrop struct {
	name  string // family, table and chain
	table *nft.Table
	chain nft.Chain
}

// dropChains returns the chains of a table that forwardDrops lists.
func dropChains(t *nft.Table) (chains []nft.Chain) {
	if t.Family == nftables.TableFamilyBridge || t.Family == nftables.TableFamilyNetdev {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(t.Chains), func(c nft.Chain) bool {
		return !c.Base || c.Hook != *nftables.ChainHookForward || !c.Drops
	})
}

// allPass reports whether a chain's rules certainly accept all traffic that networks forward. If
// the subnets of such a network are not known, allPass returns false.
func (n *Node) allPass(d forwardDrop) bool {
	some := false
	for _, net := range n.Networks {
		if !net.routes() {
			continue
		}
		subnets := net.subnets()
		if len(subnets) == 0 {
			return false
		}
		for _, p := range subnets {
			if p.Addr().Is4() && d.table.Family == nftables.TableFamilyIPv6 || p.Addr().Is6() && d.table.Family == nftables.TableFamilyIPv4 {
				continue
			}
			some = true
			if eval.Passed(d.table, d.chain, p, net.link()) != eval.Yes {
				return false
			}
		}
	}
	return some
}

// legacyDrops checks the rules of iptables-legacy, which netlink cannot read. None of our
// plugins adds accepting rules there.
func legacyDrops(n *Node) (found []Finding, err error) {
	tables, err := iptnft.LegacyTables(n.Paths.Proc)
	if err != nil {
		return nil, err
	}
	for _, f := range [...]struct {
		table, program string
		v6             bool
	}{{"ip filter", "iptables-legacy", false}, {"ip6 filter", "ip6tables-legacy", true}} {
		if !slices.Contains(tables, f.table) {
			continue
		}
		drops, derr := iptnft.LegacyForwardDrops(f.v6)
		if err = errors.Join(err, derr); drops {
			found = append(found, problem(fmt.Sprintf("the FORWARD chain of %s drops: no rule in nftables overrules that", f.program),
				"%s -P FORWARD ACCEPT, or accept the containers' subnets there; better, move that firewall to iptables-nft", f.program))
		}
	}
	return found, err
}
