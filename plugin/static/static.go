// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package static is the plugin `static`. The plugin returns the addresses that the
// configuration or the caller names. The plugin keeps no state and does not check whether
// another container uses an address.
package static

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/patchbay-net/patchbay/ipam"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Plugin has the name, the versions and the functions of this plugin.
var Plugin = plugin.Plugin{
	Name:         "static",
	Kind:         plugin.IPAM,
	About:        "gives the addresses the configuration names",
	Capabilities: []string{"ips"},
	Conf:         func() any { return new(Conf) },
	NoPrev:       plugin.NoPrev{Check: "Required prevResult missing"},
	Warnings:     doubts,
	Samples:      samples,

	Add:   add,
	Check: check,
}

// doubts warns if the configuration has no addresses. Addresses may come with each ADD, but in
// most networks they do not.
func doubts(r *plugin.Request) []string {
	if len(plugin.ConfOf[Conf](r).addrs) > 0 || r.InList != nil && r.InList.Granted["ips"] {
		return nil
	}
	return []string{"static gives no address: only CNI_ARGS could name one"}
}

// samples returns the only possible answer, unless the runtime replaces it.
func samples(r *plugin.Request) []*spec.Result {
	_, err := r.Conf()
	if conf := plugin.ConfOf[Conf](r); err == nil && len(conf.addrs) > 0 && !r.InList.Granted["ips"] {
		return []*spec.Result{conf.answer()}
	}
	return nil
}

func add(_ context.Context, r *plugin.Request) (*spec.Result, error) {
	return plugin.ConfOf[Conf](r).answer(), nil
}

func (c *Conf) answer() *spec.Result {
	result := &spec.Result{Routes: c.IPAM.Routes, DNS: c.IPAM.DNS}
	for _, a := range c.addrs {
		result.IPs = append(result.IPs, spec.IPConfig{Address: a.prefix, Gateway: a.gateway})
	}
	return result
}

// check reports an error if a configured address, or its gateway, is missing in the previous
// result. (The reference accepts a missing address.)
func check(_ context.Context, r *plugin.Request) error {
	for _, a := range plugin.ConfOf[Conf](r).addrs {
		if !a.in(r.Prev().IPs) {
			return spec.Errorf(spec.CodeInternal, "static: Failed to match addr %v on interface %v", a.prefix.Addr(), r.IfName)
		}
	}
	return nil
}

// address is an address to assign.
type address struct {
	prefix  netip.Prefix // with host bits
	gateway netip.Addr   // zero if there is none
}

// in reports whether ips has the address and, if a gateway is set, the gateway.
func (a address) in(ips []spec.IPConfig) bool {
	for _, ip := range ips {
		if ip.Address.Addr() == a.prefix.Addr() {
			return !a.gateway.IsValid() || ip.Gateway == a.gateway
		}
	}
	return false
}

// Conf is the part of the calling plugin's configuration that this plugin reads.
type Conf struct {
	IPAM *IPAM `json:"ipam"`

	RuntimeConfig struct {
		// IPs, in CIDR notation, replace all other addresses.
		// Reference: same.
		IPs []string `json:"ips"`
	} `json:"runtimeConfig"`

	Args struct {
		CNI struct {
			// IPs replace the addresses of the configuration and of CNI_ARGS. Reference: same.
			IPs []string `json:"ips"`
		} `json:"cni"`
	} `json:"args"`

	addrs []address // addresses to assign
}

// IPAM is the section `ipam`.
type IPAM struct {
	// Type is static.
	// Reference: same.
	Type string `json:"type"`

	// Addresses are the addresses to give; the list may be empty. IP in CNI_ARGS, a list with
	// commas, adds addresses. Reference: CHECK accepts a missing address.
	Addresses []Address `json:"addresses"`

	// Routes are copied into the result. Reference: accepts a route without dst.
	Routes []spec.Route `json:"routes"`

	// DNS is copied into the result.
	// Reference: same.
	DNS spec.DNS `json:"dns"`
}

// Address is an address in CIDR notation, with its gateway.
type Address struct {
	// Address is in CIDR notation.
	// Reference: same.
	Address string `json:"address"`

	// Gateway is the gateway of this address. GATEWAY in CNI_ARGS becomes the gateway of every
	// address whose subnet contains it. Reference: GATEWAY reaches only the addresses of IP.
	Gateway string `json:"gateway"`
}

// Load collects the addresses. Load starts with the configuration's addresses and adds IP in
// CNI_ARGS. If args.cni or runtimeConfig has addresses, they replace all of these.
func (c *Conf) Load(r *plugin.Request) (err error) {
	if c.IPAM == nil {
		return spec.Invalid("IPAM config missing 'ipam' key")
	}
	if c.addrs, err = c.addresses(r); err != nil {
		return err
	}
	v4 := 0
	for _, a := range c.addrs {
		if a.prefix.Addr().Is4() {
			v4++
		}
	}
	if err := r.CheckFamilies(v4, len(c.addrs)-v4); err != nil {
		return err
	}
	for _, a := range c.addrs {
		if err := plugin.CheckPrefix(a.prefix); err != nil {
			return err
		}
	}
	return plugin.CheckRoutes(c.IPAM.Routes)
}

func (c *Conf) addresses(r *plugin.Request) ([]address, error) {
	addrs, err := c.IPAM.addresses()
	if err != nil {
		return nil, err
	}
	if addrs, err = withArgs(addrs, r); err != nil {
		return nil, err
	}
	for _, ips := range [][]string{c.Args.CNI.IPs, c.RuntimeConfig.IPs} {
		if len(ips) == 0 {
			continue
		}
		if addrs, err = parseAll(ips, "an entry in the 'ips' field is NOT in CIDR notation, got: '%s'"); err != nil {
			return nil, spec.Invalid("%w", err)
		}
	}
	return addrs, nil
}

func (c *IPAM) addresses() ([]address, error) {
	var out []address
	for i, a := range c.Addresses {
		p, ok := parseCIDR(a.Address)
		if !ok {
			return nil, spec.Invalid("the 'address' field is expected to be in CIDR notation, got: '%s'", a.Address)
		}
		gw, err := ipam.ParseAddr(a.Gateway)
		if err != nil {
			return nil, spec.Invalid("invalid address %d: %w", i, err)
		}
		out = append(out, address{p, gw})
	}
	return out, nil
}

// withArgs appends the addresses in IP of CNI_ARGS. withArgs sets each GATEWAY of CNI_ARGS for
// every address whose subnet contains it.
func withArgs(addrs []address, r *plugin.Request) ([]address, error) {
	args, err := r.CNIArgs()
	if err != nil {
		return nil, err
	}
	if list, ok := spec.LookupArg(args, "IP"); ok && list != "" {
		more, err := parseAll(strings.Split(list, ","), "the 'ip' field is expected to be in CIDR notation, got: '%s'")
		if err != nil {
			return nil, spec.Errorf(spec.CodeInvalidEnvironment, "%w", err)
		}
		addrs = append(addrs, more...)
	}
	list, ok := spec.LookupArg(args, "GATEWAY")
	if !ok || list == "" {
		return addrs, nil
	}
	for _, text := range strings.Split(list, ",") {
		gw, err := ipam.ParseAddr(strings.TrimSpace(text))
		if err != nil || !gw.IsValid() {
			return nil, spec.Errorf(spec.CodeInvalidEnvironment, "invalid gateway address: %s", text)
		}
		for i := range addrs {
			if addrs[i].prefix.Contains(gw) {
				addrs[i].gateway = gw
			}
		}
	}
	return addrs, nil
}

// parseAll reads a list of addresses. format is the error text for an invalid address.
func parseAll(list []string, format string) ([]address, error) {
	out := make([]address, 0, len(list))
	for _, s := range list {
		s = strings.TrimSpace(s)
		p, ok := parseCIDR(s)
		if !ok {
			return nil, fmt.Errorf(format, s)
		}
		out = append(out, address{prefix: p})
	}
	return out, nil
}

// parseCIDR reads an address with its prefix length. Like the reference, it takes an IPv4 address that is written as
// an IPv6 address.
func parseCIDR(s string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(s)
	p = spec.UnmapPrefix(p)
	return p, err == nil && !p.Addr().Is4In6()
}
