// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package npwg

import (
	"fmt"
	"net/netip"
)

// Gateway is a default route that the annotation asks for.
type Gateway struct {
	Interface string     `json:"interface"`
	Addr      netip.Addr `json:"addr,omitzero"` // not valid: the default routes that the network's plugins made stay
	IPv6      bool       `json:"ipv6,omitempty"`
}

// Gateways returns for each family at most one network that has the pod's default route (§4.1.2.1.9). Default routes of
// this family that other networks made go; a family that no network asks for keeps its own. An empty list means both families, with
// the routes that the network's plugins made. If two networks want a family, that is an error, as in Multus. With strict, only one
// network may have the key at all.
func Gateways(list []Selection, strict bool) (out []Gateway, err error) {
	var by [2]*Selection
	var first *Selection
	for i := range list {
		s := &list[i]
		if s.Ask.DefaultRoute == nil {
			continue
		}
		if strict && first != nil {
			return nil, fmt.Errorf("%w: networks %s and %s both have default-route: leave it out of one", ErrAnnotation, first, s)
		}
		first = s
		for _, g := range s.gateways() {
			family := 0
			if g.IPv6 {
				family = 1
			}
			if other := by[family]; other != nil {
				return nil, fmt.Errorf("%w: networks %s and %s both want the default route of IPv%d: leave it out of one", ErrAnnotation, other, s, 4+2*family)
			}
			by[family] = s
			out = append(out, g)
		}
	}
	return out, nil
}

func (s *Selection) gateways() (out []Gateway) {
	if len(s.Ask.DefaultRoute) == 0 {
		return []Gateway{{Interface: s.Interface}, {Interface: s.Interface, IPv6: true}}
	}
	for _, a := range s.Ask.DefaultRoute {
		out = append(out, Gateway{Interface: s.Interface, Addr: a, IPv6: a.Is6()})
	}
	return out
}
