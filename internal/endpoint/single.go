// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"cmp"
	"context"
	"net"
	"slices"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Single is an attachment with one interface that exists only in the container's namespace: a
// tap, a dummy, or a device of the host.
type Single struct {
	MAC    net.HardwareAddr // nil if not known before the ADD
	Link   netstate.State   // creates the interface, which is down
	Record *record.Record   // what DEL needs to know in addition to names; may be nil
	DNS    spec.DNS         // from the configuration
	MTU    int              // bytes; 0 means not known

	// Addresses, if set, is used as IPAM's answer, and IPAM is not asked.
	Addresses *spec.Result
	// Configure, if set, replaces the function Configure.
	Configure func(ifName string, result *spec.Result) netstate.State

	// Exists is the error to return if the container already has an interface with this name.
	Exists error
}

// Attach performs the ADD. Some IPAM plugins, such as dhcp, work through the interface, so Attach
// calls them when the interface is up. Attach calls all others before it makes the interface, so
// that an exhausted pool costs nothing.
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

// begin returns an error if the interface exists; otherwise it writes the record.
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

// IPAMNeedsLink reports whether an IPAM plugin may work through the container's interface. It
// returns false only for our own plugins that do not use the interface. The reference calls every
// IPAM plugin when the interface exists.
func IPAMNeedsLink(ipamType string) bool {
	return ipamType != "" && ipamType != "host-local" && ipamType != "static"
}

// Compile computes the desired state and the result. The state begins with Link. Compile
// changes nothing. If ipam is nil, the interface is only set up and gets no addresses.
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
		ip.Interface = new(int) // the only interface has index 0
		result.IPs = append(result.IPs, ip)
	}
	configure := s.Configure
	if configure == nil {
		configure = Configure
	}
	return append(state, configure(ifName, result)...), result, nil
}

// Configure gives a container's interface the addresses and routes of a result. Then it sets
// the interface up, which makes the kernel announce it.
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

// OnSegment works like Configure, but also announces the addresses. OnSegment serves an
// interface on a segment with other hosts.
func OnSegment(ifName string, result *spec.Result) netstate.State {
	return new(Child).configure(ifName, result)
}

// foundMAC returns the Ethernet address of the container's interface in the previous result.
// Without a previous result, foundMAC returns nil. If the result has no entry for this interface
// and namespace, foundMAC returns an error.
func foundMAC(r *plugin.Request, env *netstate.Env) (net.HardwareAddr, error) {
	inside, err := findInside(r, env)
	if err != nil {
		return nil, err
	}
	return parseMAC(inside)
}

// CheckFound performs CHECK of the attachment that single describes, with the Ethernet address of the previous result.
func CheckFound(ctx context.Context, r *plugin.Request, single func(mac net.HardwareAddr) *Single) error {
	env, err := kernel.Of(r).Env(r)
	if err != nil {
		return err
	}
	mac, err := foundMAC(r, env)
	if err != nil {
		return err
	}
	return single(mac).Check(ctx, r, env)
}

// Check performs CHECK. Check first calls CHECK of the IPAM plugin and then compares the
// kernel with the state that the previous result describes.
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
