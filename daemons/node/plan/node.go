// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/prefix"
)

// Node has the fields of a Node object that the agent keeps: some 300 bytes of the 5 to 20 kB that
// the API server sends. The texts are copied unchecked, so they may be invalid.
type Node struct {
	Name    string   `json:"name"`
	UID     string   `json:"uid,omitempty"`
	Created int64    `json:"created,omitempty"` // seconds, by the API server's clock
	Leaving bool     `json:"leaving,omitempty"` // its deletion has begun
	Pods    []string `json:"podCIDRs,omitempty"`
	Addrs   []string `json:"addresses,omitempty"` // of type InternalIP

	// Annotations has the annotations whose names begin with AnnotationPrefix.
	Annotations map[string]string `json:"annotations,omitempty"`

	// Former lists podCIDRs that an earlier Node of this name had, the latest first. Pods may
	// still have addresses in them.
	Former []string `json:"formerPodCIDRs,omitempty"`

	// Missing means that a list of all Nodes lacked this one, although no event deleted it.
	Missing bool `json:"missing,omitempty"`

	// KeyOf is the name of another Node whose WireGuard key this Node has published. Annotations
	// then keeps this Node's earlier key.
	KeyOf string `json:"keyOf,omitempty"`

	// Withheld lists fields that the object has lost. The values of its earlier version stay in
	// use.
	Withheld []string `json:"withheld,omitempty"`
}

// AnnotationPrefix begins the names of our annotations of Nodes and Namespaces.
const AnnotationPrefix = "patchbay.net/"

// After returns the Node with values that it has lost since an earlier version. If podCIDRs or
// addresses are missing, the old ones stay, because pods still use the routes, and a Node that is
// created again has neither for a moment.
func (n Node) After(old Node) Node {
	if len(n.blocks()) == 0 && len(old.blocks()) > 0 {
		what := "podCIDRs"
		if len(n.Pods) > 0 {
			what = fmt.Sprintf("valid podCIDRs, but %.100q,", n.Pods)
		}
		n.Pods, n.Withheld = old.Pods, append(n.Withheld, what)
	}
	if len(n.underlay()) == 0 && len(old.underlay()) > 0 {
		n.Addrs, n.Withheld = old.Addrs, append(n.Withheld, "addresses of type InternalIP")
	}
	return n
}

// mostFormer limits the former podCIDRs of a Node whose podCIDRs change again and again.
const mostFormer = 8

// Recalling returns the Node with former podCIDRs: those that an earlier Node of the same name
// had and this one lacks.
func (n Node) Recalling(old Node) Node {
	have := n.blocks()
	n.Former = nil
	for _, b := range append(old.blocks(), valid(old.Former)...) {
		if !slices.ContainsFunc(have, b.Overlaps) && len(n.Former) < mostFormer {
			n.Former, have = append(n.Former, b.String()), append(have, b)
		}
	}
	return n
}

// blocks returns the valid podCIDRs.
func (n Node) blocks() []netip.Prefix { return valid(n.Pods) }

// valid returns those of a list of podCIDRs that are valid.
func valid(podCIDRs []string) (list []netip.Prefix) {
	for _, text := range podCIDRs {
		if p, err := block(text); err == nil {
			list = append(list, p)
		}
	}
	return list
}

// block parses a podCIDR.
func block(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil || p != p.Masked() {
		return p, fmt.Errorf("podCIDR %q is not the prefix of a network, such as 10.244.3.0/24", text)
	}
	if err := mesh.CheckSubnet(p); err != nil {
		return p, fmt.Errorf("podCIDR %w", err)
	}
	return p, nil
}

// underlay returns the first valid address of each family.
func (n Node) underlay() (list []netip.Addr) {
	for _, text := range n.Addrs {
		a, err := netip.ParseAddr(text)
		if err != nil || !prefix.IsHost(a) {
			continue
		}
		if len(list) == 0 || len(list) == 1 && list[0].Is4() != a.Is4() {
			list = append(list, a)
		}
	}
	return list
}
