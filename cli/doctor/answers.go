// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/jsonat"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// answers returns what IPAM would answer, and warns of values that cannot be intended.
func (v *vetter) answers(path string, call *spec.Call, head *spec.Conf, n *jsonat.Node, in plugin.InList) []*spec.Result {
	r := &plugin.Request{Call: call, Network: head.Name, Version: head.CNIVersion, Head: head, Session: v.session, InList: &in}
	samples := r.Samples()
	var reported []string
	for _, sample := range samples {
		for _, doubt := range doubtsOf(sample) {
			if !slices.Contains(reported, doubt) {
				reported = append(reported, doubt)
				v.warn(offsetOf(n), "%s: %s", path, doubt)
			}
		}
	}
	return samples
}

func doubtsOf(r *spec.Result) (list []string) {
	addf := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	for _, ip := range r.IPs {
		p, gw := ip.Address, ip.Gateway
		switch a := p.Addr(); {
		case outer(p, a):
			addf("%s is the first or last address of its subnet, which no host can have", p)
		case reserved(a):
			addf("no container can have the address %s", p)
		}
		switch {
		case !gw.IsValid():
		case gw.Is4() != p.Addr().Is4():
			addf("the gateway %s of %s is of the other address family", gw, p)
		case !p.Contains(gw) && !gw.IsLinkLocalUnicast() && !p.IsSingleIP():
			addf("the gateway %s is outside of %s", gw, p.Masked())
		case outer(p, gw):
			addf("the gateway %s is the first or last address of %s, which no host can have", gw, p.Masked())
		case gw == p.Addr():
			addf("%s is its own gateway", gw)
		}
	}
	for i, route := range r.Routes {
		list = append(list, routeDoubts(fmt.Sprintf("routes[%d]", i), route, r.IPs)...)
	}
	for i, s := range r.DNS.Nameservers {
		if !isAddress(s) {
			addf("dns.nameservers[%d]: %q is no address", i, s)
		}
	}
	return list
}

func routeDoubts(at string, r spec.Route, ips []spec.IPConfig) (list []string) {
	addf := func(format string, args ...any) { list = append(list, at+fmt.Sprintf(format, args...)) }
	for _, f := range []struct {
		key   string
		value int
	}{{"mtu", r.MTU}, {"advmss", r.AdvMSS}, {"priority", r.Priority}, {"table", at0(r.Table)}, {"scope", at0(r.Scope)}} {
		if f.value < 0 {
			addf(".%s is negative: %d", f.key, f.value)
		}
	}
	if at0(r.Scope) > 255 {
		addf(".scope is %d, and 255 the largest there is", *r.Scope)
	}
	if r.Dst != r.Dst.Masked() {
		addf(".dst %s is an address in %s", r.Dst, r.Dst.Masked())
	}
	sameFamily := func(ip spec.IPConfig) bool { return ip.Address.Addr().Is4() == r.Dst.Addr().Is4() }
	if !slices.ContainsFunc(ips, sameFamily) {
		addf(" to %s: the container has no address of that family", r.Dst)
	}
	return list
}

// at0 returns an optional number, 0 if it is missing.
func at0(n *int) int {
	if n == nil {
		return 0
	}
	return *n
}

// outer reports whether an address is the first or last of its IPv4 subnet.
func outer(p netip.Prefix, a netip.Addr) bool {
	if !a.Is4() || p.Bits() > 30 || !p.Contains(a) {
		return false
	}
	next := a.Next()
	return a == p.Masked().Addr() || !next.IsValid() || !p.Contains(next)
}

// reserved reports loopback, multicast and unspecified addresses, and the ones that IPv6
// gives every interface itself.
func reserved(a netip.Addr) bool {
	return a.IsLoopback() || a.IsMulticast() || a.IsUnspecified() || a.Is4() && a.As4()[0] == 0 || a.Is6() && a.IsLinkLocalUnicast()
}

func isAddress(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}
