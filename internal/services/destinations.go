// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import "net/netip"

// destinations are endpoints of one family in their slots. A netip.AddrPort takes 32 bytes, and there are very many, so each is 6 bytes here,
// or 18 of IPv6: those of AddrPort.AppendBinary. The first byte says how many. No endpoint is "".
type destinations string

func destinationsOf(list []netip.AddrPort) destinations {
	if len(list) == 0 {
		return ""
	}
	const port = 2
	size := list[0].Addr().BitLen()/8 + port
	b := append(make([]byte, 0, 1+len(list)*size), byte(size))
	for _, to := range list {
		b, _ = to.AppendBinary(b) // it never fails
	}
	return destinations(b)
}

// list returns the endpoints.
func (d destinations) list() []netip.AddrPort {
	if d == "" {
		return nil
	}
	size := int(d[0])
	list := make([]netip.AddrPort, 0, len(d)/size)
	for rest := []byte(d[1:]); len(rest) > 0; rest = rest[size:] {
		var to netip.AddrPort
		to.UnmarshalBinary(rest[:size]) //nolint:errcheck // it is AppendBinary's
		list = append(list, to)
	}
	return list
}

// keep returns the endpoints in the slots that they had in old, as far as they can stay there.
func (d destinations) keep(old []netip.AddrPort) destinations {
	if len(old) == 0 {
		return d
	}
	return destinationsOf(keep(old, d.list()))
}
