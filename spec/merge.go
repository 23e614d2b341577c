// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"cmp"
	"net/netip"
	"slices"
)

// Inside returns the container's interface with a name, or nil if the result has none.
func (r *Result) Inside(ifName string) *Interface {
	for i := range r.Interfaces {
		if in := &r.Interfaces[i]; in.isInside(ifName) {
			return in
		}
	}
	return nil
}

// isInside reports whether i is the container's interface with a name. Only interfaces of a container have a
// sandbox (SPEC.md, "Add Success").
func (i *Interface) isInside(ifName string) bool { return i.Name == ifName && i.Sandbox != "" }

// IPsOf returns the addresses of the container's interface with a name. An address without an interface
// counts too: a result before 0.3.0 names no interfaces, and is about this one.
func (r *Result) IPsOf(ifName string) (out []IPConfig) {
	for _, ip := range r.IPs {
		if in := r.Of(ip); in == nil || in.isInside(ifName) {
			out = append(out, ip)
		}
	}
	return out
}

// Gateway returns the next hop of the first default route of IPv4, or else of IPv6. If that route has no gw, it
// is the first gateway of the family, as plugins read it. Without a next hop, Gateway returns the zero Addr.
func (r *Result) Gateway(v4 bool) netip.Addr {
	i := slices.IndexFunc(r.Routes, func(rt Route) bool { return rt.Dst == DefaultDst(v4) })
	switch {
	case i < 0 || r.Routes[i].OnLink():
		return netip.Addr{}
	case r.Routes[i].GW.IsValid():
		return r.Routes[i].GW
	}
	for _, ip := range r.IPs {
		if ip.Gateway.IsValid() && ip.Gateway.Is4() == v4 {
			return ip.Gateway
		}
	}
	return netip.Addr{}
}

// Merge returns the results of several networks of one container as one result of the current version. The
// order is kept: the first default route is that of the first network that has one. DNS servers, search domains and
// options are listed once each, and the domain is the first one. The arguments are not changed.
func Merge(results ...*Result) *Result {
	out := &Result{CNIVersion: Current}
	for _, r := range results {
		r, first := r.Clone(), len(out.Interfaces)
		for i := range r.IPs {
			ip := &r.IPs[i]
			if r.Of(*ip) == nil {
				ip.Interface = nil // an index out of range would name an interface of another network
			} else {
				*ip.Interface += first
			}
		}
		out.Interfaces = append(out.Interfaces, r.Interfaces...)
		out.IPs = append(out.IPs, r.IPs...)
		out.Routes = append(out.Routes, r.Routes...)
		out.DNS = out.DNS.and(r.DNS)
	}
	return out
}

// and returns d with the entries that only other has.
func (d DNS) and(other DNS) DNS {
	return DNS{
		Nameservers: union(d.Nameservers, other.Nameservers),
		Domain:      cmp.Or(d.Domain, other.Domain),
		Search:      union(d.Search, other.Search),
		Options:     union(d.Options, other.Options),
	}
}

func union(list, more []string) []string {
	for _, s := range more {
		if !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return list
}
