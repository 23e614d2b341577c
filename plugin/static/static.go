// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package static is the plugin `static`: it returns the addresses that the configuration or
// the caller names. It keeps no state and does not check whether an address is in use
// elsewhere.
package static

import (
	"context"
	"net/netip"

	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Plugin is the plugin.
var Plugin = plugin.Plugin{
	Name:         "static",
	Kind:         plugin.IPAM,
	About:        "gives the addresses the configuration names",
	Capabilities: []string{"ips"},
	Conf:         func() any { return new(Conf) },
	NoPrev:       plugin.NoPrev{Check: "Required prevResult missing"},
	Doubts:       doubts,
	Samples:      samples,

	Add:   add,
	Check: check,
}

// doubts: addresses may come with each ADD, but not in most networks.
func doubts(r *plugin.Request) []string {
	if len(plugin.ConfOf[Conf](r).addrs) > 0 || r.InList != nil && r.InList.Granted["ips"] {
		return nil
	}
	return []string{"static gives no address: only CNI_ARGS could name one"}
}

// samples is the one possible answer, unless the runtime replaces it.
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

// check expects every configured address in the previous result, with its gateway if it has
// one. (The reference accepts a missing address.)
func check(_ context.Context, r *plugin.Request) error {
	for _, a := range plugin.ConfOf[Conf](r).addrs {
		if !a.in(r.Prev().IPs) {
			return spec.Errorf(spec.CodeInternal, "static: Failed to match addr %v on interface %v", a.prefix.Addr(), r.IfName)
		}
	}
	return nil
}

// address is one address to assign.
type address struct {
	prefix  netip.Prefix // host bits kept
	gateway netip.Addr   // or zero
}

// in reports whether ips has the address, with its gateway if that is set.
func (a address) in(ips []spec.IPConfig) bool {
	for _, ip := range ips {
		if ip.Address.Addr() == a.prefix.Addr() {
			return !a.gateway.IsValid() || ip.Gateway == a.gateway
		}
	}
	return false
}
