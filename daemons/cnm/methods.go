// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnm

import (
	"context"
	"slices"
	"strings"
)

// find returns the function for a method, or nil if the driver does not have the method.
func (h *Handler) find(method string) methodFunc {
	service, name, _ := strings.Cut(method, ".")
	switch {
	case method == "Plugin.Activate":
		return get(h.activate)
	case h.Down != nil && name != "GetCapabilities":
		return func(context.Context, []byte) (any, error) { return nil, h.Down }
	case service == ImplementsNetwork && h.Network != nil:
		if fn := networkMethod(h.Network, name); fn != nil {
			return fn
		}
		return optionalMethod(h.Network, name)
	case service == ImplementsIPAM && h.IPAM != nil:
		return ipamMethod(h.IPAM, name)
	case h.Others[method] != nil:
		return methodFunc(h.Others[method])
	}
	return nil
}

func (h *Handler) activate(context.Context) (*Manifest, error) {
	m := &Manifest{Implements: []string{}}
	if h.Network != nil {
		m.Implements = append(m.Implements, ImplementsNetwork)
	}
	if h.IPAM != nil {
		m.Implements = append(m.Implements, ImplementsIPAM)
	}
	return m, nil
}

func networkMethod(d NetworkDriver, name string) methodFunc {
	switch name {
	case "GetCapabilities":
		return get(d.Capabilities)
	case "CreateNetwork":
		return order(d.CreateNetwork)
	case "DeleteNetwork":
		return remove(d.DeleteNetwork)
	case "CreateEndpoint":
		return ask(d.CreateEndpoint)
	case "DeleteEndpoint":
		return remove(d.DeleteEndpoint)
	case "EndpointOperInfo":
		return ask(d.EndpointOperInfo)
	case "Join":
		return ask(d.Join)
	case "Leave":
		return remove(d.Leave)
	}
	return nil
}

func optionalMethod(d NetworkDriver, name string) methodFunc {
	outside, hasOutside := d.(Connectivity)
	gateways, hasGateways := d.(GatewayChecker)
	swarm, hasSwarm := d.(Allocator)
	hosts, hasHosts := d.(Discoverer)
	switch {
	case name == "ProgramExternalConnectivity" && hasOutside:
		return order(outside.ProgramExternalConnectivity)
	case name == "RevokeExternalConnectivity" && hasOutside:
		return remove(outside.RevokeExternalConnectivity)
	case name == "GwAllocCheck" && hasGateways:
		return ask(gateways.GwAllocCheck)
	case name == "AllocateNetwork" && hasSwarm:
		return ask(swarm.AllocateNetwork)
	case name == "FreeNetwork" && hasSwarm:
		return remove(swarm.FreeNetwork)
	case name == "DiscoverNew" && hasHosts:
		return order(hosts.DiscoverNew)
	case name == "DiscoverDelete" && hasHosts:
		return remove(hosts.DiscoverDelete)
	}
	return nil
}

func ipamMethod(d IPAMDriver, name string) methodFunc {
	switch name {
	case "GetCapabilities":
		return get(d.IPAMCapabilities)
	case "GetDefaultAddressSpaces":
		return get(d.AddressSpaces)
	case "RequestPool":
		return ask(d.RequestPool)
	case "ReleasePool":
		return remove(d.ReleasePool)
	case "RequestAddress":
		return ask(d.RequestAddress)
	case "ReleaseAddress":
		return remove(d.ReleaseAddress)
	}
	return nil
}

// needs returns an error if one of the names is empty.
func needs(names ...string) error {
	if slices.Contains(names, "") {
		return errEmpty
	}
	return nil
}

func (r *CreateNetworkRequest) valid() error   { return needs(r.NetworkID) }
func (r *NetworkRequest) valid() error         { return needs(r.NetworkID) }
func (r *AllocateNetworkRequest) valid() error { return needs(r.NetworkID) }
func (r *CreateEndpointRequest) valid() error  { return needs(r.NetworkID, r.EndpointID) }
func (r *EndpointRequest) valid() error        { return needs(r.NetworkID, r.EndpointID) }
func (r *JoinRequest) valid() error            { return needs(r.NetworkID, r.EndpointID) }
func (r *ConnectivityRequest) valid() error    { return needs(r.NetworkID, r.EndpointID) }
func (r *GwAllocCheckRequest) valid() error    { return nil }
func (r *DiscoveryRequest) valid() error       { return nil }
func (r *RequestPoolRequest) valid() error     { return needs(r.AddressSpace) }
func (r *ReleasePoolRequest) valid() error     { return needs(r.PoolID) }
func (r *RequestAddressRequest) valid() error  { return needs(r.PoolID) }
func (r *ReleaseAddressRequest) valid() error  { return needs(r.PoolID) }
