// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nl"
	policy "github.com/patchbay-net/patchbay/internal/policy/enforce"
	"github.com/patchbay-net/patchbay/internal/services"
	"github.com/patchbay-net/patchbay/internal/services/enforce"
)

const (
	againByAgent = "the agent writes the table anew when it compares it; if it does not: restart patchbayd node, and see its log"
	tableOf      = "the table inet " + nft.ServicesTable
)

// servicesTable finds what keeps packets to Services from going where the agent sends them. A node without the table has no finding.
func servicesTable(ctx context.Context, n *Node) (found []Finding, err error) {
	fault, table, err := n.servicesNow()
	switch {
	case err != nil || table == nil && fault == "":
		return nil, err
	case fault != "":
		found = append(found, problem(fmt.Sprintf("what %s does with packets to Services is not known: %s", tableOf, fault),
			againByAgent+"; on a node that must not do Services: nft delete table inet "+nft.ServicesTable))
	}
	more, err := n.faults(ctx, table)
	found = append(found, more...)
	for _, check := range [...]func(*Node, services.Table) ([]Finding, error){besideKubeProxy, foreignTranslations, nodePlace, routesToServices} {
		more, cerr := check(n, table)
		found, err = append(found, more...), errors.Join(err, cerr)
	}
	return found, err
}

// servicesNow reads the table. Without a table, or if its elements cannot be read, the elements are nil.
func (n *Node) servicesNow() (fault string, t services.Table, err error) {
	err = enforce.WithView(n.Kernel.NFT, func(v *enforce.View) (err error) {
		t = nil
		if fault = v.Fault(); v.Exists() {
			t, err = v.All()
		}
		return err
	})
	return fault, t, err
}

// servicesFault says what a fault of elements does, and whether it is a problem.
type servicesFault struct {
	level     Level
	what, fix string
}

func servicesFaults() map[services.FaultKind]servicesFault {
	return map[services.FaultKind]servicesFault{
		services.MissingSlots: {Problem, "some connections to Services find no endpoint, because slots of their endpoints are missing", againByAgent},
		services.Undecided:    {Problem, "packets to Services are neither translated nor refused, because their endpoints are missing", againByAgent},
		services.Invisible:    {Problem, "packets to Services are not looked at, because the address is missing in vips4 or vips6", againByAgent},
		services.Ambiguous:    {Warning, "Services have endpoints in two ways, and only the first counts", againByAgent},
		services.Undrawn:      {Warning, "endpoints of Services are in no class, so no connection gets them", againByAgent},
		services.ClosedToAll: {Warning, "no client reaches a load balancer's address, because none of its loadBalancerSourceRanges can be read",
			"correct spec.loadBalancerSourceRanges of the Service"},
		services.OutsideCIDRs: {Warning, "cluster IPs are in no ServiceCIDR that this node knows, so packets to addresses that no Service has leave the node instead of being dropped",
			"kubectl get servicecidrs; the agent's role must be allowed to list them"},
		services.NoNodeAddress: {Problem, "node ports are at no address of this node", "see the addresses of the Node (kubectl get node -o wide), and --nodeport-addresses of the agent"},
	}
}

// faults finds elements that lead nowhere. A change of many transactions makes addresses visible last, so faults are looked at again
// after a while.
func (n *Node) faults(ctx context.Context, t services.Table) (found []Finding, err error) {
	list := t.Faults()
	if len(list) > 0 {
		n.wait(ctx, patience)
		_, again, err := n.servicesNow()
		if err != nil {
			return nil, err
		}
		still := again.Faults()
		list = slices.DeleteFunc(list, func(f services.Fault) bool { return !slices.Contains(still, f) })
	}
	names := make(map[services.FaultKind][]string)
	for _, f := range list {
		names[f.Kind] = append(names[f.Kind], named1(f.Frontend))
	}
	for kind := services.FaultKind(0); kind <= services.NoNodeAddress; kind++ {
		if s := servicesFaults()[kind]; len(names[kind]) > 0 {
			found = append(found, Finding{Level: s.level, What: s.what + ": " + some(names[kind]), Fix: s.fix})
		}
	}
	return found, nil
}

// named1 returns how users know a frontend, or an address.
func named1(f services.Frontend) string {
	switch {
	case f.Port == 0 && f.Addr.IsUnspecified():
		return map[bool]string{false: "IPv4", true: "IPv6"}[f.Addr.Is6()]
	case f.Port == 0:
		return f.Addr.String()
	case f.Addr.IsUnspecified():
		return fmt.Sprintf("node port %d/%s", f.Port, f.Protocol)
	}
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(f.Addr, f.Port), f.Protocol)
}

// besideKubeProxy finds rules of kube-proxy, whether it runs or has left them. They are in the same hooks at the same priority, so the older
// ones come first, and what kube-proxy has left leads to endpoints that were removed since.
func besideKubeProxy(n *Node, _ services.Table) (found []Finding, err error) {
	const fix = "stop kube-proxy on this node, and then: patchbay gc --kube-proxy"
	var have []string
	refs := []nft.Ref{
		{Family: nftables.TableFamilyIPv4, Table: "kube-proxy"}, {Family: nftables.TableFamilyIPv6, Table: "kube-proxy"},
		{Family: nftables.TableFamilyIPv4, Table: "nat", Chain: "KUBE-SERVICES"}, {Family: nftables.TableFamilyIPv6, Table: "nat", Chain: "KUBE-SERVICES"},
	}
	got, err := n.Kernel.NFT.ReadPresence(refs...)
	if err != nil {
		return nil, err
	}
	for i, r := range refs {
		text := "table " + nft.FamilyName(r.Family) + " " + r.Table
		if r.Chain != "" {
			text = "chain " + r.Chain + " of " + text
		}
		if got[i].Found {
			have = append(have, text)
		}
	}
	if len(have) > 0 {
		found = append(found, problem(fmt.Sprintf("kube-proxy's rules are beside those of patchbay, and the older ones translate a packet first: %s", some(have)), fix))
	}
	switch _, err := n.Host.Link(policy.IPVSLink); {
	case err == nil:
		found = append(found, problem("kube-proxy in mode ipvs gave the addresses of Services to the link "+policy.IPVSLink+": the node is their owner, and answers at ports that no Service has", fix))
	case !nl.IsNotFound(err):
		return found, err
	}
	return found, nil
}

// nodePlace compares what the table says about this node with the node: addresses of node ports, and pods.
func nodePlace(n *Node, t services.Table) (found []Finding, err error) {
	own, _, err := policy.NodeAddresses()
	if err != nil {
		return nil, err
	}
	var gone, strangers []string
	for _, a := range t.Addresses(services.NodeAddress) {
		if !slices.Contains(own, a) {
			gone = append(gone, a.String())
		}
	}
	for _, r := range n.records() {
		if r.Policed == nil || !n.Kernel.Lives(r) {
			continue
		}
		for _, a := range r.Policed.Addrs {
			if has, known := t.Pods(a); known && !has {
				strangers = append(strangers, fmt.Sprintf("%s/%s %s", r.Policed.Namespace, r.Policed.Name, a))
			}
		}
	}
	if len(gone) > 0 {
		found = append(found, warning("node ports are at addresses that this node does not have: "+some(gone), "give them to the node again; the agent follows the node's addresses"))
	}
	if len(strangers) > 0 {
		found = append(found, warning("pods of this node are in none of its podCIDRs, so Services see the node's address instead of theirs: "+some(strangers),
			"let the network of these pods give addresses of spec.podCIDRs of the Node"))
	}
	return found, nil
}

// routesToServices finds addresses of Services to which the node has no route. A program of the node then fails before any Service is asked.
func routesToServices(n *Node, t services.Table) (found []Finding, err error) {
	var without []string
	for _, a := range firstOfEach(t.Addresses(services.ClusterIP)) {
		if _, err := n.Host.RouteGet(a.AsSlice()); err != nil {
			without = append(without, a.String())
		}
	}
	if len(without) > 0 {
		found = append(found, problem("this node has no route to cluster IPs, so its own programs do not reach Services: "+some(without), "a default route, or a route to the ServiceCIDR; any that leads out of the node will do"))
	}
	return found, nil
}

// firstOfEach returns the first address of each family.
func firstOfEach(list []netip.Addr) (out []netip.Addr) {
	for _, a := range list {
		if !slices.ContainsFunc(out, func(o netip.Addr) bool { return o.Is6() == a.Is6() }) {
			out = append(out, a)
		}
	}
	return out
}
