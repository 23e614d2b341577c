// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// parseAddr reads an address as old API servers let it in: a part of an IPv4 address may begin with zeros, and is
// decimal all the same (KEP-4858).
func parseAddr(text string) (netip.Addr, bool) {
	if strings.Contains(text, ".") && !strings.Contains(text, ":") {
		parts := strings.Split(text, ".")
		for i, part := range parts {
			parts[i] = strings.TrimLeft(part[:max(0, len(part)-1)], "0") + part[max(0, len(part)-1):]
		}
		text = strings.Join(parts, ".")
	}
	a, err := netip.ParseAddr(text)
	return a.Unmap(), err == nil && a.Zone() == ""
}

// parseAddrs returns each address once, without those that cannot be read.
func parseAddrs(texts []string) (list []netip.Addr) {
	for _, text := range texts {
		if a, ok := parseAddr(text); ok && !slices.Contains(list, a) {
			list = append(list, a)
		}
	}
	return list
}

// parsePrefixes reads ranges as parseAddr does. They may have spaces around them and bits behind the mask. Those that
// cannot be read are left out.
func parsePrefixes(texts []string) (list []netip.Prefix) {
	for _, text := range texts {
		addr, length, _ := strings.Cut(strings.TrimSpace(text), "/")
		a, ok := parseAddr(addr)
		bits, err := strconv.Atoi(length)
		if p, wrong := a.Prefix(bits); ok && err == nil && wrong == nil {
			list = append(list, p)
		}
	}
	return list
}
