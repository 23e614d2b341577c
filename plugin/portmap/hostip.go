// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/spec"
)

// parseHostIP reads the host address of a mapping. (The reference treats an invalid string as
// an IPv6 address and maps nothing.)
func parseHostIP(s string) (netip.Addr, error) {
	if s == "" {
		return netip.Addr{}, nil
	}
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return a, spec.Invalid("Invalid host IP: %.60q", s).WithDetails("portMappings takes an IPv4 or IPv6 address without a zone")
	}
	if a == netip.IPv6Loopback() {
		return a, spec.Errorf(spec.CodeUnsupportedField, "unsupported hostIP %q", s).
			WithDetails("Linux never lets an answer from elsewhere reach ::1; use 127.0.0.1, which works")
	}
	if a = a.Unmap(); a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return a, forMany(a)
	}
	return a, nil
}

// forMany refuses a hostIP to which the kernel lets no connection go.
func forMany(a netip.Addr) error {
	return spec.Invalid("Invalid host IP: %s is a broadcast or multicast address", a).
		WithDetails("use an address of the host, or leave hostIP out for all of them")
}

// checkHosts returns an error if a hostIP is the broadcast address of one of the host's networks.
func (p *plan) checkHosts(env *netstate.Env) error {
	checked := make(map[netip.Addr]bool)
	for _, m := range p.mappings {
		if !m.host.Is4() || m.host.IsUnspecified() || checked[m.host] {
			continue
		}
		checked[m.host] = true
		_, kind, err := env.Host.RouteTo(m.host)
		if err != nil && !nl.IsNoRoute(err) {
			return err
		}
		if err == nil && kind == unix.RTN_BROADCAST {
			return forMany(m.host)
		}
	}
	return nil
}
