// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"cmp"
	"context"
	"net"
	"slices"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/kernel"
	"github.com/patchbay-net/patchbay/spec"
)

// Single is an attachment of one interface that is only in the container's namespace: a
// tap, a dummy, a device of the host.
type Single struct {
	MAC    net.HardwareAddr // if known before; may be nil
	Link   netstate.State   // creates the interface, down
	Record *record.Record   // what DEL needs beyond names; may be nil
	DNS    spec.DNS         // from the configuration
	MTU    int              // in bytes; 0: not known

	// Addresses are used instead of asking IPAM; may be nil.
	Addresses *spec.Result
	// Configure replaces the function of that name; may be nil.
	Configure func(ifName string, result *spec.Result) netstate.State

	// Exists is the error when the container has an interface of the name.
	Exists error
}

// Attach is the ADD. It calls an IPAM plugin that works through the interface, as dhcp
// does, when the interface exists and is up, and others before, so that an exhausted pool
// costs nothing.
func (s *Single) Attach(ctx context.Context, r *plugin.Request, env *netstate.Env) (*spec.Result, error) {
	if err := s.begin(r, env); err != nil {
		return nil, err
	}
	k, done := kernel.Of(r), 0
	if IPAMNeedsLink(r.Head.IPAM.Type) {
		up := netstate.Up{Where: netstate.Sandbox, Link: r.IfName}
		if err := k.Apply(ctx, r, env, append(slices.Clone(s.Link), up)); err != nil {
			return nil, err
		}
		done = len(s.Link)
	}
	ipam := s.Addresses
	if ipam == nil && r.Head.IPAM.Type != "" {
		var err error
		if ipam, err = r.IPAMAdd(ctx); err != nil {
			return nil, err
		}
		if err := ValidateAnswer(s.MTU, ipam); err != nil {
			return nil, err
		}
	}
	state, result, err := s.Compile(r.IfName, r.NetNS, ipam)
	if err != nil {
		return nil, err
	}
	if err := k.Apply(ctx, r, env, state[done:]); err != nil || r.Session.Dry != nil {
		return result, err
	}
	return result, Describe(env, netstate.Sandbox, &result.Interfaces[0])
}

// begin refuses an existing interface and writes the record.
func (s *Single) begin(r *plugin.Request, env *netstate.Env) error {
	if t := r.Head.IPAM.Type; t != "" {
		if err := spec.ValidatePluginType(t); err != nil {
			return err
		}
	}
	_, err := env.Sandbox.Link(r.IfName)
	if err == nil {
		return s.Exists
	}
	if !nl.IsNotFound(err) {
		return err
	}
	return kernel.Of(r).Record(r, cmp.Or(s.Record, &record.Record{}))
}

// IPAMNeedsLink reports whether an IPAM plugin may work through the container's interface: the
// reference calls all of them when it exists, and only ours are known not to use it.
func IPAMNeedsLink(ipamType string) bool {
	return ipamType != "" && ipamType != "host-local" && ipamType != "static"
}

// Compile computes the desired state, which begins with Link, and the result. It changes
// nothing. Without IPAM (nil) the interface is only set up.
func (s *Single) Compile(ifName, sandbox string, ipam *spec.Result) (netstate.State, *spec.Result, error) {
	result := &spec.Result{
		Interfaces: []spec.Interface{{Name: ifName, Mac: s.MAC.String(), Sandbox: sandbox}},
		DNS:        s.DNS,
	}
	state := append(netstate.State{}, s.Link...)
	if ipam == nil {
		return append(state, netstate.Up{Where: netstate.Sandbox, Link: ifName}), result, nil
	}
	if len(ipam.IPs) == 0 {
		return nil, nil, spec.Invalid("IPAM plugin returned missing IP config")
	}
	result.Routes, result.DNS = ipam.Routes, DNS(s.DNS, ipam.DNS)
	for _, ip := range ipam.IPs {
		ip.Interface = new(int) // the only one
		result.IPs = append(result.IPs, ip)
	}
	configure := s.Configure
	if configure == nil {
		configure = Configure
	}
	return append(state, configure(ifName, result)...), result, nil
}

// Configure gives an interface of the container the addresses and routes of a result and
// sets it up, so that the kernel announces it.
func Configure(ifName string, result *spec.Result) netstate.State {
	s := EnableIPv6(ifName, result.IPs, NoDuplicates(ifName, result.IPs)...)
	for _, ip := range result.IPs {
		s = append(s, netstate.Addr{Where: netstate.Sandbox, Link: ifName, Prefix: ip.Address})
	}
	s = append(s, netstate.Up{Where: netstate.Sandbox, Link: ifName, Notify: true})
	for _, r := range Routes(ifName, result) {
		s = append(s, r)
	}
	return s
}

// OnSegment is Configure for an interface on a segment with other hosts: it announces the
// addresses there.
func OnSegment(ifName string, result *spec.Result) netstate.State {
	return new(Child).configure(ifName, result)
}

// FoundMAC is the Ethernet address that the previous result has for the container's
// interface (nil: none). A result without an entry for this interface and namespace is an
// error.
func FoundMAC(r *plugin.Request, env *netstate.Env) (net.HardwareAddr, error) {
	inside, err := findInside(r, env)
	if err != nil {
		return nil, err
	}
	return parseMAC(inside)
}

// Check is the CHECK: IPAM's, then the state that the previous result describes.
func (s *Single) Check(ctx context.Context, r *plugin.Request, env *netstate.Env) error {
	var ipam *spec.Result
	if r.Head.IPAM.Type != "" {
		ipam = r.Prev()
	}
	state, _, err := s.Compile(r.IfName, r.NetNS, ipam)
	if err != nil {
		return err
	}
	return kernel.Check(ctx, env, state)
}
