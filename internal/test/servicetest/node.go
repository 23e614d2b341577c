// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package servicetest

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// read reads an address. Kubernetes took leading zeros as decimal once, and old objects still have them.
func read(text string) netip.Addr {
	if !strings.Contains(text, ":") {
		var parts []string
		for _, part := range strings.Split(text, ".") {
			n, err := strconv.Atoi(part)
			if err != nil {
				return netip.Addr{}
			}
			parts = append(parts, strconv.Itoa(n))
		}
		text = strings.Join(parts, ".")
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}
	}
	return a
}

// readAll reads the addresses of one family, and skips the rest.
func readAll(texts []string, v6 bool) (list []netip.Addr) {
	for _, text := range texts {
		if a := read(text); a.IsValid() && a.Is6() == v6 {
			list = append(list, a)
		}
	}
	return list
}

// readRanges reads ranges, which may have spaces around them and host bits.
func readRanges(texts []string) (list []netip.Prefix) {
	for _, text := range texts {
		addr, bits, _ := strings.Cut(strings.TrimSpace(text), "/")
		n, err := strconv.Atoi(bits)
		if a := read(addr); a.IsValid() && err == nil {
			list = append(list, netip.PrefixFrom(a, n).Masked())
		}
	}
	return list
}

func within(ranges []string, a netip.Addr) bool {
	return slices.ContainsFunc(readRanges(ranges), func(r netip.Prefix) bool { return r.Contains(a) })
}

func (c *Cluster) inServiceCIDR(a netip.Addr) bool { return within(c.ServiceCIDRs, a) }

// isPod reports whether an address is that of a pod of this node.
func (c *Cluster) isPod(a netip.Addr) bool { return within(c.Node.Spec.PodCIDRs, a) }

// knowsPods reports whether pods of a family can be told from others.
func (c *Cluster) knowsPods(v6 bool) bool {
	return slices.ContainsFunc(readRanges(c.Node.Spec.PodCIDRs), func(r netip.Prefix) bool { return r.Addr().Is6() == v6 })
}

// isNode reports whether an address is this node's own.
func (c *Cluster) isNode(a netip.Addr) bool {
	for _, na := range c.Node.Status.Addresses {
		if na.Type != "Hostname" && read(na.Address) == a {
			return true
		}
	}
	return a.IsLoopback() || slices.Contains(c.Links, a.String())
}

// primary returns the node's address of a family: the first internal one, or else the first external one.
func (c *Cluster) primary(v6 bool) netip.Addr {
	for _, kind := range []string{"InternalIP", "ExternalIP"} {
		for _, na := range c.Node.Status.Addresses {
			if a := read(na.Address); na.Type == kind && a.IsValid() && a.Is6() == v6 {
				return a
			}
		}
	}
	return netip.Addr{}
}

// nodePortAddresses returns the addresses of a family that have node ports.
func (c *Cluster) nodePortAddresses(v6 bool) (list []netip.Addr) {
	if len(c.Flags.NodePortAddresses) == 0 {
		if a := c.primary(v6); a.IsValid() {
			return []netip.Addr{a}
		}
		return nil
	}
	mine := slices.DeleteFunc(slices.Clone(c.Flags.NodePortAddresses), func(r string) bool { return strings.Contains(r, ":") != v6 })
	for _, text := range c.Links {
		a := read(text)
		if a.Is6() == v6 && !a.IsLoopback() && (len(mine) == 0 || within(mine, a)) {
			list = append(list, a)
		}
	}
	return list
}
