// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"net/netip"

	"github.com/patchbay-net/patchbay/internal/lightjson"
)

// ParseResult reads a result. If the result has no cniVersion, ParseResult takes it to be of the
// given version, as libcni does (cni#895). A JSON null is an empty result.
func ParseResult(data []byte, version string) (*Result, error) {
	var head struct {
		CNIVersion string `json:"cniVersion"`
	}
	if err := lightjson.Unmarshal(data, &head); err != nil {
		return nil, Errorf(CodeDecoding, "decode result: %w", err)
	}
	if head.CNIVersion != "" {
		version = head.CNIVersion
	}
	switch {
	case version == "":
		version = Legacy
	case !Supported(version):
		return nil, Errorf(CodeIncompatibleVersion, "unsupported CNI result version %q", version)
	}
	if !AtLeast(version, "0.3.0") {
		return parseLegacy(data, version)
	}
	r := new(Result)
	if err := lightjson.Unmarshal(data, r); err != nil {
		return nil, Errorf(CodeDecoding, "decode result: %w", err)
	}
	r.CNIVersion = version
	return valid(r)
}

func valid(r *Result) (*Result, error) {
	r.unmap()
	if err := r.usable(); err != nil {
		return nil, err
	}
	return r, nil
}

// unmap writes IPv4 addresses as IPv4. Like Go's type net.IP, with which the reference reads results, a plugin may
// write them as ::ffff:10.0.0.1. The kernel would take the first bytes of such an address.
func (r *Result) unmap() {
	for i := range r.IPs {
		ip := &r.IPs[i]
		ip.Address, ip.Gateway = UnmapPrefix(ip.Address), ip.Gateway.Unmap()
	}
	UnmapRoutes(r.Routes)
}

// UnmapRoutes writes IPv4 addresses that are written as IPv6 as IPv4, in place.
func UnmapRoutes(routes []Route) {
	for i := range routes {
		routes[i].Dst, routes[i].GW = UnmapPrefix(routes[i].Dst), routes[i].GW.Unmap()
	}
}

// UnmapPrefix returns the prefix ::ffff:10.0.0.1/120 as 10.0.0.1/24, and any other unchanged.
func UnmapPrefix(p netip.Prefix) netip.Prefix {
	const mapped = 96 // the length of ::ffff:0:0/96
	if !p.Addr().Is4In6() || p.Bits() < mapped {
		return p
	}
	return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-mapped)
}

// usable returns an error if an address or a route's destination is missing: no plugin could use
// the result, and the reference crashes on it. Like the reference, usable accepts an interface
// index that is out of range; Of returns nil for it.
func (r *Result) usable() error {
	for i, ip := range r.IPs {
		if !ip.Address.IsValid() {
			return Errorf(CodeDecoding, "decode result: ips[%d]: the address is missing", i)
		}
	}
	for i, rt := range r.Routes {
		if !rt.Dst.IsValid() {
			return Errorf(CodeDecoding, "decode result: routes[%d]: the destination is missing", i)
		}
	}
	return nil
}

// Validate checks a result that a plugin is about to return. Validate refuses all that
// ParseResult refuses. It also refuses interface indices that are out of range.
func (r *Result) Validate() error {
	for i, ip := range r.IPs {
		if ip.Interface != nil && r.Of(ip) == nil {
			return Errorf(CodeDecoding, "decode result: ips[%d]: %s is on interface %d, and there are %d interfaces", i, ip.Address, *ip.Interface, len(r.Interfaces))
		}
	}
	return r.usable()
}

// Of returns the interface of an address. Of returns nil if the address has no interface
// index, or one out of range.
func (r *Result) Of(ip IPConfig) *Interface {
	if i := ip.Interface; i != nil && *i >= 0 && *i < len(r.Interfaces) {
		return &r.Interfaces[*i]
	}
	return nil
}

// Encode writes r in the given version. Like the reference, it indents by four spaces and writes
// no final newline. A result of a version before 0.3.0 holds one address per family. For those
// versions Encode refuses a result without addresses.
func (r *Result) Encode(version string) ([]byte, error) {
	if version == "" {
		version = Legacy
	}
	v, err := r.As(version)
	if err != nil {
		return nil, err
	}
	data, err := lightjson.MarshalIndent(v, "", "    ")
	if err != nil {
		return nil, Errorf(CodeInternal, "encode result: %w", err)
	}
	return data, nil
}

// As returns a value that encoding/json encodes in the form of the given version.
func (r *Result) As(version string) (any, error) {
	switch {
	case !Supported(version):
		return nil, Errorf(CodeIncompatibleVersion, "unsupported CNI result version %q", version)
	case !AtLeast(version, "0.3.0"):
		return toLegacy(r, version)
	case !AtLeast(version, "1.0.0"):
		return to040(r, version), nil
	}
	c := *r
	c.CNIVersion = version
	return &c, nil
}

// result040 is a result of the versions 0.3.0 to 0.4.0. Each address has its family. An empty dns
// is printed. An interface has only name, mac and sandbox.
type result040 struct {
	CNIVersion string         `json:"cniVersion"`
	Interfaces []interface040 `json:"interfaces,omitempty"`
	IPs        []ip040        `json:"ips,omitempty"`
	Routes     []Route        `json:"routes,omitempty"`
	DNS        DNS            `json:"dns"`
}

type interface040 struct {
	Name    string `json:"name"`
	Mac     string `json:"mac,omitempty"`
	Sandbox string `json:"sandbox,omitempty"`
}

type ip040 struct {
	Version   string       `json:"version"`
	Interface *int         `json:"interface,omitempty"`
	Address   netip.Prefix `json:"address"`
	Gateway   netip.Addr   `json:"gateway,omitzero"`
}

func to040(r *Result, version string) result040 {
	out := result040{CNIVersion: version, Routes: r.Routes, DNS: r.DNS}
	for _, i := range r.Interfaces {
		out.Interfaces = append(out.Interfaces, interface040{i.Name, i.Mac, i.Sandbox})
	}
	for _, ip := range r.IPs {
		out.IPs = append(out.IPs, ip040{family(ip.Address), ip.Interface, ip.Address, ip.Gateway})
	}
	return out
}

func family(p netip.Prefix) string {
	if p.Addr().Is4() {
		return "4"
	}
	return "6"
}

// resultLegacy is a result of the versions 0.1.0 and 0.2.0.
type resultLegacy struct {
	CNIVersion string    `json:"cniVersion,omitempty"`
	IP4        *ipLegacy `json:"ip4,omitempty"`
	IP6        *ipLegacy `json:"ip6,omitempty"`
	DNS        DNS       `json:"dns"`
}

type ipLegacy struct {
	IP      netip.Prefix  `json:"ip"`
	Gateway netip.Addr    `json:"gateway,omitzero"`
	Routes  []routeLegacy `json:"routes,omitempty"`
}

// routeLegacy is a Route without the fields that later versions added.
type routeLegacy struct {
	Dst netip.Prefix `json:"dst"`
	GW  netip.Addr   `json:"gw,omitzero"`
}

func toLegacy(r *Result, version string) (*resultLegacy, error) {
	out := &resultLegacy{CNIVersion: version, DNS: r.DNS}
	for _, ip := range r.IPs {
		l := &ipLegacy{IP: ip.Address, Gateway: ip.Gateway}
		switch {
		case ip.Address.Addr().Is4() && out.IP4 == nil:
			out.IP4 = l
		case !ip.Address.Addr().Is4() && out.IP6 == nil:
			out.IP6 = l
		}
	}
	if out.IP4 == nil && out.IP6 == nil {
		return nil, Errorf(CodeIncompatibleVersion, "cannot convert: no valid IP addresses").
			WithDetails("version %s cannot express a result without addresses: raise cniVersion to 0.3.0 or newer", version)
	}
	for _, rt := range r.Routes {
		l := out.IP6
		if rt.Dst.Addr().Is4() {
			l = out.IP4
		}
		if l != nil {
			l.Routes = append(l.Routes, routeLegacy{rt.Dst, rt.GW})
		}
	}
	return out, nil
}

func parseLegacy(data []byte, version string) (*Result, error) {
	var l resultLegacy
	if err := lightjson.Unmarshal(data, &l); err != nil {
		return nil, Errorf(CodeDecoding, "decode result: %w", err)
	}
	r := &Result{CNIVersion: version, DNS: l.DNS}
	for _, ip := range []*ipLegacy{l.IP4, l.IP6} {
		if ip == nil {
			continue
		}
		r.IPs = append(r.IPs, IPConfig{Address: ip.IP, Gateway: ip.Gateway})
		for _, rt := range ip.Routes {
			r.Routes = append(r.Routes, Route{Dst: rt.Dst, GW: rt.GW})
		}
	}
	return valid(r)
}
