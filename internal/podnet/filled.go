// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package podnet

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"slices"
)

// IsFilled reports whether a file equals, byte for byte, the file that containerd makes from the
// template of this release. The prefixes may be any.
func IsFilled(file []byte) bool {
	var list struct {
		Plugins []struct {
			Plugins []struct {
				IPMasqOutside []netip.Prefix
				IPAM          struct {
					Ranges [][]struct{ Subnet netip.Prefix }
				}
			}
		}
	}
	if json.Unmarshal(file, &list) != nil || len(list.Plugins) == 0 || len(list.Plugins[0].Plugins) == 0 {
		return false
	}
	pods := list.Plugins[0].Plugins[0]
	n := Network{Cluster: pods.IPMasqOutside}
	for _, set := range pods.IPAM.Ranges {
		if len(set) != 1 {
			return false
		}
		n.Node = append(n.Node, set[0].Subnet)
	}
	return len(n.Node) > 0 && bytes.Equal(file, n.filled())
}

// filled returns the template with this node's prefixes filled in. containerd lists the IPv4 route
// first.
func (n Network) filled() []byte {
	inOrder := slices.Clone(n.Node)
	slices.SortStableFunc(inOrder, func(a, b netip.Prefix) int { return a.Addr().BitLen() - b.Addr().BitLen() })
	return n.config(n.ownRanges(), Network{Node: inOrder}.defaultRoutes())
}
