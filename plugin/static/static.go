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
	Validate:     validate,
	Doubts:       doubts,
	Samples:      samples,

	Add:    add,
	Check:  check,
	Status: status,
}

// validate decodes the configuration.
func validate(r *plugin.Request) error {
	_, _, err := load(r)
	return err
}

// doubts: addresses may come with each ADD, but not in most networks.
func doubts(r *plugin.Request) []string {
	_, addrs, err := load(r)
	if err != nil || len(addrs) > 0 || r.InList != nil && r.InList.Granted["ips"] {
		return nil
	}
	return []string{"static gives no address: only CNI_ARGS could name one"}
}

// samples is the one possible answer, unless the runtime replaces it.
func samples(r *plugin.Request) []*spec.Result {
	conf, addrs, err := load(r)
	if err != nil || len(addrs) == 0 || r.InList.Granted["ips"] {
		return nil
	}
	return []*spec.Result{answer(conf, addrs)}
}

func add(_ context.Context, r *plugin.Request) (*spec.Result, error) {
	conf, addrs, err := load(r)
	if err != nil {
		return nil, err
	}
	return answer(conf, addrs), nil
}

func answer(conf *Conf, addrs []address) *spec.Result {
	result := &spec.Result{Routes: conf.IPAM.Routes, DNS: conf.IPAM.DNS}
	for _, a := range addrs {
		result.IPs = append(result.IPs, spec.IPConfig{Address: a.prefix, Gateway: a.gateway})
	}
	return result
}

// check expects every configured address in the previous result, with its gateway if it has
// one. (The reference accepts a missing address.)
func check(_ context.Context, r *plugin.Request) error {
	_, addrs, err := load(r)
	if err != nil {
		return err
	}
	prev := r.Prev()
	if prev == nil {
		return spec.Invalid("Required prevResult missing")
	}
	for _, a := range addrs {
		if !a.in(prev.IPs) {
			return spec.Errorf(spec.CodeInternal, "static: Failed to match addr %v on interface %v", a.prefix.Addr(), r.IfName)
		}
	}
	return nil
}

// status succeeds for any configuration that can be read; addresses may come with each ADD.
func status(_ context.Context, r *plugin.Request) error {
	_, _, err := load(r)
	return err
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
