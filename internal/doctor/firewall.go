// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/google/nftables"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nft/iptnft"
)

// ourTable compares our tables with what this program writes, and the elements
// of living attachments and their networks with the records.
func ourTable(_ context.Context, n *Node) (found []Finding, err error) {
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
		found = append(found, problem(fmt.Sprintf("%d chains or rules of the table inet patchbay were changed: %s", len(diffs), diffs[0]), repair))
	}
	missing, who, err := n.missingElements()
	if len(missing) > 0 {
		found = append(found, problem(fmt.Sprintf("%d firewall elements of %s are missing, the first is %s: published ports or masquerade do not work",
			len(missing), who, missing[0]), repair))
	}
	return found, err
}

// missingElements are those of records whose namespace exists and of facts that
// such an attachment holds.
func (n *Node) missingElements() (missing []string, who string, err error) {
	look := func(name string, elems []nft.Element) {
		for _, e := range elems {
			_, there, gerr := n.Kernel.NFT.Get(e.Set, e.Key)
			if err = errors.Join(err, gerr); gerr == nil && !there {
				e.Comment = ""
				missing, who = append(missing, e.String()), name
			}
		}
	}
	_, facts, _ := n.Kernel.Records.Facts() // the check of leftovers tells of broken ones
	wanted := make(map[string]bool)
	for _, r := range n.records() {
		if _, serr := os.Stat(r.NetNS); r.NetNS == "" || serr != nil {
			continue
		}
		look(fmt.Sprintf("%s %s/%s", r.Network, r.ContainerID, r.IfName), r.Elements)
		for _, name := range r.Shared {
			wanted[name] = true
		}
	}
	for _, f := range facts {
		if wanted[f.Name] {
			look(f.Name, f.Elements)
		}
	}
	return missing, who, err
}

// otherDrops looks for programs whose firewall drops what ours accepts: an
// accept in one table does not overrule a drop in another.
func otherDrops(_ context.Context, n *Node) (found []Finding, err error) {
	if len(n.Networks) == 0 && len(n.records()) == 0 {
		return nil, nil
	}
	for _, check := range [...]func(*Node) ([]Finding, error){iptablesDrops, foreignDrops, legacyDrops} {
		more, cerr := check(n)
		found, err = append(found, more...), errors.Join(err, cerr)
	}
	return found, err
}

// iptablesDrops: the plugin firewall accepts a network in iptables-nft. One
// without it is cut off.
func iptablesDrops(n *Node) (found []Finding, err error) {
	for _, net := range n.Networks {
		if !net.routes() {
			continue
		}
		if slices.ContainsFunc(net.Members, func(m Member) bool { return m.Type == "firewall" }) && !n.attached(net.Name) {
			continue // its first ADD accepts it
		}
		var cut []string
		for _, p := range net.subnets() {
			todo, perr := iptnft.Accept([]netip.Prefix{p}, "").Plan(n.Kernel.NFT)
			if err = errors.Join(err, perr); perr == nil && todo != nil {
				cut = append(cut, p.String())
			}
		}
		if len(cut) == 0 {
			continue
		}
		found = append(found, problem(
			fmt.Sprintf("iptables (nftables form) drops forwarded traffic and nothing accepts that of network %s (%s)", net.Name, strings.Join(cut, ", ")),
			`add {"type": "firewall"} to the plugins of the network and attach its containers again; if it is there, patchbay repair`))
	}
	return found, err
}

// routes says whether the host forwards for the network.
func (n *Network) routes() bool {
	return slices.ContainsFunc(n.Members, func(m Member) bool { return m.Type == "bridge" || m.Type == "ptp" })
}

func (n *Node) attached(network string) bool {
	for _, r := range n.records() {
		if r.Network == network && r.Plugin == "firewall" {
			return true
		}
	}
	return false
}

// foreignDrops: other nftables tables with a forward chain that drops by policy,
// and firewalld, which rejects what is in no zone.
func foreignDrops(n *Node) (found []Finding, err error) {
	drops, err := n.forwardDrops()
	if err != nil {
		return nil, err
	}
	for _, d := range drops {
		if d == "ip filter FORWARD" || d == "ip6 filter FORWARD" {
			continue // iptablesDrops
		}
		found = append(found, warning(
			fmt.Sprintf("the nftables chain %s drops forwarded traffic by policy: what it does not accept itself, our accept does not save", d),
			"nft insert rule %s ip saddr SUBNET accept, and the same with ip daddr and ct state established,related; or make its policy accept", d))
	}
	got, err := n.Kernel.NFT.Look(nft.Ref{Family: nftables.TableFamilyINet, Table: "firewalld"})
	if err == nil && got[0].Found && !n.inZone() {
		found = append(found, warning("firewalld is running and no container is in one of its zones: it rejects what it does not know",
			`add {"type": "firewall"} to the networks, or firewall-cmd --permanent --zone=trusted --add-source=SUBNET`))
	}
	return found, err
}

// inZone says whether any attachment has a source in a zone.
func (n *Node) inZone() bool {
	return slices.ContainsFunc(n.liveSources(), netip.Prefix.IsValid)
}

func (n *Node) liveSources() (out []netip.Prefix) {
	for _, r := range n.records() {
		out = append(out, r.Sources...)
	}
	return out
}

// forwardDrops lists the base chains at the forward hook that drop by policy.
func (n *Node) forwardDrops() (names []string, err error) {
	c, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("list firewall chains: %w", err)
	}
	chains, err := c.ListChains()
	if err != nil {
		return nil, fmt.Errorf("list firewall chains: %w", err)
	}
	for _, ch := range chains {
		family, ok := familyName(ch.Table.Family)
		if ok && ch.Hooknum != nil && *ch.Hooknum == *nftables.ChainHookForward && ch.Policy != nil && *ch.Policy == nftables.ChainPolicyDrop {
			names = append(names, family+" "+ch.Table.Name+" "+ch.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

func familyName(f nftables.TableFamily) (string, bool) {
	switch f {
	case nftables.TableFamilyINet:
		return "inet", true
	case nftables.TableFamilyIPv4:
		return "ip", true
	case nftables.TableFamilyIPv6:
		return "ip6", true
	}
	return "", false
}

// legacyDrops: iptables-legacy cannot be reached over netlink, and nothing of
// ours is accepted there.
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
			found = append(found, problem(fmt.Sprintf("the FORWARD chain of %s drops: no rule in nftables saves containers' traffic from it", f.program),
				"%s -P FORWARD ACCEPT, or accept the containers' subnets there; better, move that firewall to iptables-nft", f.program))
		}
	}
	return found, err
}
