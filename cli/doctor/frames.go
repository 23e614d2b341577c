// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"slices"

	"github.com/google/nftables"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nft/follow"
)

// inetIngress is the hook of devices in a table of family inet (linux/netfilter.h).
const inetIngress = 5

// frameDrops returns what the chains of a table drop of a network's frames, bridge chains
// and device chains. It reports doubts only if no drop is certain.
func frameDrops(net *Network, t *nft.Table, ports []string) (drops []Finding) {
	if t.Name == nft.TableName || len(ports) == 0 {
		return nil
	}
	for _, base := range t.Chains {
		if !base.Base || base.Type != "filter" || !frames(t, base) || !slices.ContainsFunc(ports, func(p string) bool { return ofDevice(t, base, p) }) {
			continue
		}
		var doubts []Finding
		for _, traffic := range net.traffic(nil) {
			if t.Family != nftables.TableFamilyBridge && traffic.Out == (base.Hook == 1) { // egress of netdev
				continue
			}
			traffic.Link, traffic.Ports = "", ports
			d := follow.DroppedBy(t, base, traffic)
			f, does := judged(t, d, way(traffic))
			switch {
			case does && d.At == "":
				doubts = append(doubts, f)
			case does:
				drops = append(drops, f)
			}
		}
		if len(drops) == 0 {
			drops = doubts
		}
	}
	return drops
}

// frames reports whether a base chain sees frames.
func frames(t *nft.Table, base nft.Chain) bool {
	return t.Family == nftables.TableFamilyBridge || t.Family == nftables.TableFamilyNetdev || t.Family == nftables.TableFamilyINet && base.Hook == inetIngress
}

// ofDevice reports whether a base chain is called for a link.
func ofDevice(t *nft.Table, base nft.Chain, link string) bool {
	return t.Family == nftables.TableFamilyBridge || slices.Contains(base.Devices, link)
}

// ports maps each network to the host's links of its attachments, and its bridge.
func (n *Node) ports() map[string][]string {
	out := make(map[string][]string)
	for _, r := range n.records() {
		out[r.Network] = append(out[r.Network], r.Links...)
	}
	for _, net := range n.Networks {
		if b := net.link(); b != "" {
			out[net.Name] = append(out[net.Name], b)
		}
	}
	return out
}
