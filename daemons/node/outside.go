// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/podnet"
	"github.com/patchbay-net/patchbay/internal/record"
)

// outside returns an error that names the pods with addresses of podCIDRs that the Node no
// longer has. Such pods exist after the Node was deleted and registered again. The kernel keeps
// their routes, so the pods work until they are deleted. Other containers on the pods' network
// count, too.
func (a *Agent) outside(n podnet.Network) error {
	store := record.New(a.opts.Paths.Run)
	defer store.Close()
	records, _, err := store.Scan(cmp.Or(n.Pool.Name, podnet.Name))
	if err != nil {
		return fmt.Errorf("look for pods with former addresses: %w", err)
	}
	found := map[string]netip.Addr{}
	for _, r := range records {
		if addr, ok := outsider(r, n); ok {
			found[cmp.Or(r.Pod, r.ContainerID)] = addr
		}
	}
	if len(found) == 0 {
		return nil
	}
	return fmt.Errorf("pods with addresses of podCIDRs that Node %s no longer has: %d, %s. They keep their network, but other nodes reach them only until another Node gets those podCIDRs, "+
		"and then its pods may get the same addresses. New pods get addresses of %v: delete the old pods, or drain the node with kubectl drain %[1]s --ignore-daemonsets",
		a.opts.Node, len(found), some(found), n.Node)
}

// outsider returns an address of an attachment that lies in the cluster's networks and in no podCIDR
// of this node.
func outsider(r *record.Record, n podnet.Network) (netip.Addr, bool) {
	for _, e := range r.Elements {
		addr, ok := e.Container()
		of := func(p netip.Prefix) bool { return p.Contains(addr) }
		if ok && slices.ContainsFunc(n.Cluster, of) && !slices.ContainsFunc(n.Node, of) {
			return addr, true
		}
	}
	return netip.Addr{}, false
}

// some lists the first pods by name, so that the text changes little while pods go.
func some(found map[string]netip.Addr) string {
	const most = 3
	var names []string
	for pod, addr := range found {
		names = append(names, fmt.Sprintf("%s (%s)", pod, addr))
	}
	slices.Sort(names)
	if more := len(names) - most; more > 0 {
		names = append(names[:most], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}
