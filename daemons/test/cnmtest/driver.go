// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package cnmtest has Docker drivers for tests. Driver is a network and IPAM driver. It makes
// bridges, veth pairs and macvlans in the namespace of the process, and uses package cnm's
// server. Server serves a Driver. It can answer any call wrongly: with an error, a 404, an
// invalid answer, or not at all.
package cnmtest

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	"github.com/patchbay-net/patchbay/daemons/cnm"
)

// Mode is the way in which a Driver attaches containers.
type Mode int

// These are the modes.
const (
	Veth    Mode = iota // hands over one end of a veth pair; the other end is in a bridge
	Macvlan             // hands over a macvlan on the network's option "parent"
	Self                // configures the container without Docker
	Nothing             // joins without a link
)

// Driver keeps its state in memory, as most drivers do.
type Driver struct {
	Mode  Mode
	Scope string // default local

	// RequiresMAC is a capability of the IPAM driver.
	RequiresMAC bool
	// RequiresReplay is a capability of the IPAM driver.
	RequiresReplay bool
	// SkipGateways is the answer to GwAllocCheck. If it is set, the driver announces that call.
	SkipGateways bool
	// NoGateway leaves the gateway out of Join's answer.
	NoGateway bool
	// Routes are returned by Join.
	Routes []cnm.StaticRoute
	// ZeroPool makes it an IPAM driver like Calico's. Its pools are 0.0.0.0/0 and ::/0, it gives
	// single addresses, and its gateway is outside of all networks.
	ZeroPool bool
	// NewIDs gives a pool another id at each request.
	NewIDs bool
	// NewPools chooses another IPv4 pool at each request without a subnet.
	NewPools bool
	// GatewayInPool puts the gateway into RequestPool's Data.
	GatewayInPool bool

	mu       sync.Mutex
	networks map[string]*network
	pools    map[string]*pool
	asked    int                    // number of requested pools, which Forget does not reset
	opened   map[string]cnm.Options // endpoints with external connectivity
	nodes    map[string]bool        // by address; true for the driver's own node
}

type network struct {
	request   *cnm.CreateNetworkRequest
	endpoints map[string]*endpoint
}

type endpoint struct {
	cnm.Interface
	options cnm.Options
	joined  string
}

// Forget loses all state, as a restart does.
func (d *Driver) Forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.networks, d.pools, d.opened, d.nodes = nil, nil, nil, nil
}

// Networks returns the CreateNetwork request of every network.
func (d *Driver) Networks() (list []*cnm.CreateNetworkRequest) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, n := range d.networks {
		list = append(list, n.request)
	}
	return list
}

// Endpoints counts the endpoints of all networks.
func (d *Driver) Endpoints() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, nw := range d.networks {
		n += len(nw.endpoints)
	}
	return n
}

// Opened returns the options of every endpoint with external connectivity.
func (d *Driver) Opened() (list []cnm.Options) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, o := range d.opened {
		list = append(list, o)
	}
	return list
}

// EndpointOptions returns the options of all endpoints.
func (d *Driver) EndpointOptions() (list []cnm.Options) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, n := range d.networks {
		for _, e := range n.endpoints {
			list = append(list, e.options)
		}
	}
	return list
}

// Capabilities implements cnm.NetworkDriver.
func (d *Driver) Capabilities(context.Context) (*cnm.Capabilities, error) {
	scope := d.Scope
	if scope == "" {
		scope = cnm.ScopeLocal
	}
	return &cnm.Capabilities{Scope: scope, GwAllocChecker: d.SkipGateways}, nil
}

// GwAllocCheck implements cnm.GatewayChecker.
func (d *Driver) GwAllocCheck(context.Context, *cnm.GwAllocCheckRequest) (*cnm.GwAllocCheckResponse, error) {
	return &cnm.GwAllocCheckResponse{SkipIPv4: d.SkipGateways, SkipIPv6: d.SkipGateways}, nil
}

// AllocateNetwork implements cnm.Allocator.
func (d *Driver) AllocateNetwork(_ context.Context, in *cnm.AllocateNetworkRequest) (*cnm.AllocateNetworkResponse, error) {
	out := map[string]string{"vni": "4711"}
	for k, v := range in.Options {
		out[k] = v
	}
	return &cnm.AllocateNetworkResponse{Options: out}, nil
}

// FreeNetwork implements cnm.Allocator.
func (d *Driver) FreeNetwork(context.Context, *cnm.NetworkRequest) error { return nil }

// CreateNetwork implements cnm.NetworkDriver.
func (d *Driver) CreateNetwork(_ context.Context, in *cnm.CreateNetworkRequest) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.networks[in.NetworkID] != nil {
		return fmt.Errorf("network %s already exists", in.NetworkID)
	}
	if d.Mode == Veth || d.Mode == Self {
		if err := makeBridge(bridgeOf(in.NetworkID), append(in.IPv4Data, in.IPv6Data...)); err != nil {
			return err
		}
	}
	if d.networks == nil {
		d.networks = map[string]*network{}
	}
	d.networks[in.NetworkID] = &network{request: in, endpoints: map[string]*endpoint{}}
	return nil
}

// DeleteNetwork implements cnm.NetworkDriver.
func (d *Driver) DeleteNetwork(_ context.Context, in *cnm.NetworkRequest) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.networks[in.NetworkID] == nil {
		return fmt.Errorf("network %s not found", in.NetworkID)
	}
	delete(d.networks, in.NetworkID)
	return deleteLink(bridgeOf(in.NetworkID))
}

// CreateEndpoint implements cnm.NetworkDriver.
func (d *Driver) CreateEndpoint(_ context.Context, in *cnm.CreateEndpointRequest) (*cnm.CreateEndpointResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.networks[in.NetworkID]
	if n == nil {
		return nil, fmt.Errorf("unknown network %s", in.NetworkID)
	}
	if n.endpoints[in.EndpointID] != nil {
		return nil, fmt.Errorf("endpoint %s already exists", in.EndpointID)
	}
	e := &endpoint{Interface: *in.Interface, options: in.Options}
	answer := &cnm.Interface{}
	if !e.Address.IsValid() && n.request.IPv4Data[0].AddressSpace == "null" {
		e.Address = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 66, 0, byte(10 + len(n.endpoints))}), 24)
		answer.Address = e.Address
	}
	if err := d.makeLink(n, in.NetworkID, in.EndpointID, e); err != nil {
		return nil, err
	}
	if err := routeSingles(bridgeOf(in.NetworkID), e); err != nil {
		return nil, err
	}
	n.endpoints[in.EndpointID] = e
	return &cnm.CreateEndpointResponse{Interface: answer}, nil
}

func (d *Driver) find(networkID, endpointID string) (*network, *endpoint, error) {
	n := d.networks[networkID]
	if n == nil {
		return nil, nil, fmt.Errorf("unknown network %s", networkID)
	}
	e := n.endpoints[endpointID]
	if e == nil {
		return nil, nil, fmt.Errorf("endpoint %s not found", endpointID)
	}
	return n, e, nil
}

// DeleteEndpoint implements cnm.NetworkDriver.
func (d *Driver) DeleteEndpoint(_ context.Context, in *cnm.EndpointRequest) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, _, err := d.find(in.NetworkID, in.EndpointID)
	if err != nil {
		return err
	}
	delete(n.endpoints, in.EndpointID)
	return deleteLink(source(in.EndpointID))
}

// EndpointOperInfo implements cnm.NetworkDriver.
func (d *Driver) EndpointOperInfo(_ context.Context, in *cnm.EndpointRequest) (*cnm.EndpointInfo, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, e, err := d.find(in.NetworkID, in.EndpointID)
	if err != nil {
		return nil, err
	}
	return &cnm.EndpointInfo{Value: map[string]any{"sandbox": e.joined}}, nil
}

// Join implements cnm.NetworkDriver.
func (d *Driver) Join(_ context.Context, in *cnm.JoinRequest) (*cnm.JoinResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, e, err := d.find(in.NetworkID, in.EndpointID)
	if err != nil {
		return nil, err
	}
	e.joined = in.SandboxKey
	out := &cnm.JoinResponse{StaticRoutes: d.Routes}
	if !d.NoGateway {
		out.Gateway, out.GatewayIPv6 = gateway(n.request.IPv4Data), gateway(n.request.IPv6Data)
	}
	switch d.Mode {
	case Self:
		return &cnm.JoinResponse{DisableGatewayService: true}, doItself(in, e)
	case Nothing:
		return &cnm.JoinResponse{DisableGatewayService: true}, nil
	}
	out.InterfaceName = &cnm.InterfaceName{SrcName: source(in.EndpointID), DstPrefix: "eth"}
	return out, nil
}

func gateway(data []cnm.IPAMData) netip.Addr {
	if len(data) == 0 {
		return netip.Addr{}
	}
	return data[0].Gateway.Addr()
}

// Leave implements cnm.NetworkDriver.
func (d *Driver) Leave(_ context.Context, in *cnm.EndpointRequest) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, e, err := d.find(in.NetworkID, in.EndpointID)
	if err != nil {
		return err
	}
	if d.Mode == Self {
		if err := deleteLink("cp" + in.EndpointID[:10]); err != nil {
			return err
		}
	}
	e.joined = ""
	return nil
}

// ProgramExternalConnectivity implements cnm.Connectivity.
func (d *Driver) ProgramExternalConnectivity(_ context.Context, in *cnm.ConnectivityRequest) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, _, err := d.find(in.NetworkID, in.EndpointID); err != nil {
		return err
	}
	if d.opened == nil {
		d.opened = map[string]cnm.Options{}
	}
	d.opened[in.EndpointID] = in.Options
	return nil
}

// RevokeExternalConnectivity implements cnm.Connectivity.
func (d *Driver) RevokeExternalConnectivity(_ context.Context, in *cnm.EndpointRequest) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.opened, in.EndpointID)
	return nil
}
