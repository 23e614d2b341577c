// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnm

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
)

// Scopes of a driver (Capabilities.Scope).
const (
	ScopeLocal  = "local"  // networks of this host alone
	ScopeGlobal = "global" // networks of a cluster
)

// Keys of the options.
const (
	OptionGeneric      = "com.docker.network.generic"               // the user's -o: strings
	OptionEnableIPv4   = "com.docker.network.enable_ipv4"           // bool, since 28
	OptionEnableIPv6   = "com.docker.network.enable_ipv6"           // bool
	OptionInternal     = "com.docker.network.internal"              // true, or absent
	OptionPortMap      = "com.docker.network.portmap"               // []PortBinding
	OptionExposedPorts = "com.docker.network.endpoint.exposedports" // []ExposedPort
	OptionMAC          = "com.docker.network.endpoint.macaddress"   // six bytes, base64
	OptionEndpointName = "com.docker.network.endpoint.name"         // IPAM, since 29
	OptionGateway      = "com.docker.network.gateway"               // IPAM: CIDR in RequestPool's Data
	OptionAddressType  = "RequestAddressType"                       // IPAM: OptionGateway, or absent
	OptionIfName       = "com.docker.network.endpoint.ifname"       // driver-opt, since 28
)

// Options are options whose types depend on their keys.
type Options map[string]json.RawMessage

// Set stores a value.
func (o Options) Set(key string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode option %s: %w", key, err)
	}
	o[key] = data
	return nil
}

// Get decodes a value into v. ok is false when there is none.
func (o Options) Get(key string, v any) (ok bool, err error) {
	data, ok := o[key]
	if !ok || string(data) == "null" {
		return false, nil
	}
	if err := json.Unmarshal(data, v); err != nil {
		return true, fmt.Errorf("option %s: %w", key, err)
	}
	return true, nil
}

// Strings decodes the user's own options (OptionGeneric). It refuses a value that is not
// a string: every version of Docker sends strings.
func (o Options) Strings() (map[string]string, error) {
	var m map[string]string
	_, err := o.Get(OptionGeneric, &m)
	return m, err
}

// Flag decodes a boolean; it is byDefault when absent.
func (o Options) Flag(key string, byDefault bool) (bool, error) {
	v := byDefault
	_, err := o.Get(key, &v)
	return v, err
}

// ExposedPort is a port of the container. Proto is the IP protocol: 6 TCP, 17
// UDP, 132 SCTP.
type ExposedPort struct {
	Port  uint16
	Proto uint8
}

// PortBinding is a published port (`-p`). With HostPort 0, or a range up to HostPortEnd,
// the driver chooses.
type PortBinding struct {
	Proto       uint8
	IP          string // of the container; Docker leaves it empty
	Port        uint16
	HostIP      string
	HostPort    uint16
	HostPortEnd uint16
}

// Empty is an empty request or answer.
type Empty struct{}

// Capabilities is the answer to NetworkDriver.GetCapabilities.
type Capabilities struct {
	Scope             string // ScopeLocal or ScopeGlobal
	ConnectivityScope string `json:",omitempty"`
	GwAllocChecker    bool   `json:",omitempty"` // since 28
}

// GwAllocCheckRequest asks, before any IPAM request, whether a network needs gateways.
// Docker sends it only to a driver that announced GwAllocChecker.
type GwAllocCheckRequest struct{ Options Options }

// GwAllocCheckResponse says which gateways must not be reserved.
type GwAllocCheckResponse struct{ SkipIPv4, SkipIPv6 bool }

// IPAMData are the addresses of one pool of a network.
type IPAMData struct {
	AddressSpace string
	Pool         netip.Prefix            `json:",omitzero"`
	Gateway      netip.Prefix            `json:",omitzero"` // host bits kept
	AuxAddresses map[string]netip.Prefix `json:",omitzero"`
}

// CreateNetworkRequest creates a network. It carries no name and no labels.
type CreateNetworkRequest struct {
	NetworkID string
	Options   Options
	IPv4Data  []IPAMData
	IPv6Data  []IPAMData
}

// NetworkRequest names a network (DeleteNetwork, FreeNetwork).
type NetworkRequest struct{ NetworkID string }

// AllocateNetworkRequest asks a global driver, on a manager of a swarm, for the options
// that all hosts of the network must share.
type AllocateNetworkRequest struct {
	NetworkID string
	Options   map[string]string
	IPv4Data  []IPAMData
	IPv6Data  []IPAMData
}

// AllocateNetworkResponse has the options that replace the user's in every
// CreateNetwork.
type AllocateNetworkResponse struct{ Options map[string]string }

// Interface holds the addresses of an endpoint. An answer may only set those that were
// not in the request.
type Interface struct {
	Address     netip.Prefix // host bits kept
	AddressIPv6 netip.Prefix
	MacAddress  string
}

// CreateEndpointRequest creates an endpoint.
type CreateEndpointRequest struct {
	NetworkID  string
	EndpointID string
	Interface  *Interface
	Options    Options
}

// CreateEndpointResponse holds the driver's choice. Interface may be nil.
type CreateEndpointResponse struct {
	Interface *Interface `json:",omitempty"`
}

// EndpointRequest names an endpoint (DeleteEndpoint, EndpointOperInfo, Leave,
// RevokeExternalConnectivity).
type EndpointRequest struct {
	NetworkID  string
	EndpointID string
}

// EndpointInfo is the answer to EndpointOperInfo. Docker does not show it.
type EndpointInfo struct {
	Value map[string]any
}

// JoinRequest attaches an endpoint to a sandbox. Since 28 the namespace exists at
// SandboxKey by then; before, it does not for `docker run`.
type JoinRequest struct {
	NetworkID  string
	EndpointID string
	SandboxKey string
	Options    Options
}

// InterfaceName says which link of the host moves into the sandbox, and its name there:
// DstPrefix and a number, or DstName.
type InterfaceName struct {
	SrcName   string
	DstPrefix string
	DstName   string `json:",omitempty"` // Docker reads it since moby#52866
}

// Types of a static route.
const (
	NextHop   = 0 // via StaticRoute.NextHop
	Connected = 1 // on the link
)

// StaticRoute is a route of the sandbox.
type StaticRoute struct {
	Destination netip.Prefix
	RouteType   int
	NextHop     netip.Addr `json:",omitzero"`
}

// JoinResponse says how the sandbox is attached. Without InterfaceName the driver
// attached it itself, or not at all.
type JoinResponse struct {
	InterfaceName         *InterfaceName `json:",omitempty"`
	Gateway               netip.Addr     // no prefix length
	GatewayIPv6           netip.Addr
	StaticRoutes          []StaticRoute `json:",omitempty"`
	DisableGatewayService bool          `json:",omitempty"`
}

// ConnectivityRequest opens an endpoint to the outside; Options are Join's.
type ConnectivityRequest struct {
	NetworkID  string
	EndpointID string
	Options    Options
}

// DiscoverNode is the DiscoveryType of a host.
const DiscoverNode = 1

// DiscoveryRequest reports a host that came or went.
type DiscoveryRequest struct {
	DiscoveryType int
	DiscoveryData DiscoveryData
}

// DiscoveryData is a host.
type DiscoveryData struct {
	Address     string
	BindAddress string
	Self        bool
}

// NetworkDriver has the methods that every network driver must answer. Implement
// Connectivity, GatewayChecker, Allocator and Discoverer as needed: a missing method is
// answered by 404, as Docker expects.
type NetworkDriver interface {
	Capabilities(context.Context) (*Capabilities, error)
	CreateNetwork(context.Context, *CreateNetworkRequest) error
	DeleteNetwork(context.Context, *NetworkRequest) error
	CreateEndpoint(context.Context, *CreateEndpointRequest) (*CreateEndpointResponse, error)
	DeleteEndpoint(context.Context, *EndpointRequest) error
	EndpointOperInfo(context.Context, *EndpointRequest) (*EndpointInfo, error)
	Join(context.Context, *JoinRequest) (*JoinResponse, error)
	Leave(context.Context, *EndpointRequest) error
}

// Connectivity publishes ports. After a restart of dockerd with live-restore, Docker does
// not call Revoke: Leave must do its work too.
type Connectivity interface {
	ProgramExternalConnectivity(context.Context, *ConnectivityRequest) error
	RevokeExternalConnectivity(context.Context, *EndpointRequest) error
}

// GatewayChecker can make gateways unnecessary. Announce it in Capabilities.
type GatewayChecker interface {
	GwAllocCheck(context.Context, *GwAllocCheckRequest) (*GwAllocCheckResponse, error)
}

// Allocator is for drivers of scope global in a swarm.
type Allocator interface {
	AllocateNetwork(context.Context, *AllocateNetworkRequest) (*AllocateNetworkResponse, error)
	FreeNetwork(context.Context, *NetworkRequest) error
}

// Discoverer gets the hosts that come and go.
type Discoverer interface {
	DiscoverNew(context.Context, *DiscoveryRequest) error
	DiscoverDelete(context.Context, *DiscoveryRequest) error
}
