// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnm

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
)

// These are the scopes of a driver (Capabilities.Scope).
const (
	ScopeLocal  = "local"  // each network exists on one host only
	ScopeGlobal = "global" // each network exists on all hosts of a cluster
)

// These are the keys of Options.
const (
	OptionGeneric      = "com.docker.network.generic"               // the user's -o: strings
	OptionEnableIPv4   = "com.docker.network.enable_ipv4"           // bool, since 28
	OptionEnableIPv6   = "com.docker.network.enable_ipv6"           // bool
	OptionInternal     = "com.docker.network.internal"              // true, or absent
	OptionPortMap      = "com.docker.network.portmap"               // []PortBinding
	OptionExposedPorts = "com.docker.network.endpoint.exposedports" // []ExposedPort
	OptionMAC          = "com.docker.network.endpoint.macaddress"   // six bytes, base64
	OptionEndpointName = "com.docker.network.endpoint.name"         // for IPAM drivers, since 29
	OptionGateway      = "com.docker.network.gateway"               // for IPAM drivers: a CIDR in RequestPool's Data
	OptionAddressType  = "RequestAddressType"                       // for IPAM drivers: OptionGateway, or absent
	OptionIfName       = "com.docker.network.endpoint.ifname"       // driver-opt, since 28
)

// Options holds options. The type of a value depends on its key.
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

// Get decodes the value of key into v. If the key is missing, ok is false.
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

// Strings decodes the options that the user gave (OptionGeneric). It refuses a value that is
// not a string, because every version of Docker sends strings.
func (o Options) Strings() (map[string]string, error) {
	var m map[string]string
	_, err := o.Get(OptionGeneric, &m)
	return m, err
}

// Flag decodes a boolean. If the key is missing, Flag returns byDefault.
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

// PortBinding is a published port (`-p`). If HostPort is 0, the driver chooses the host's port.
// If HostPortEnd is higher than HostPort, the driver chooses a port from this range.
type PortBinding struct {
	Proto       uint8
	IP          string // the container's address; Docker leaves it empty
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

// GwAllocCheckRequest asks whether a network needs gateways. Docker sends this request before any
// IPAM request. Only a driver with the capability GwAllocChecker gets it.
type GwAllocCheckRequest struct{ Options Options }

// GwAllocCheckResponse says for which families Docker must not reserve a gateway.
type GwAllocCheckResponse struct{ SkipIPv4, SkipIPv6 bool }

// IPAMData describes one pool of a network.
type IPAMData struct {
	AddressSpace string
	Pool         netip.Prefix            `json:",omitzero"`
	Gateway      netip.Prefix            `json:",omitzero"` // the gateway's address keeps its host bits
	AuxAddresses map[string]netip.Prefix `json:",omitzero"`
}

// CreateNetworkRequest creates a network. It has no name and no labels.
type CreateNetworkRequest struct {
	NetworkID string
	Options   Options
	IPv4Data  []IPAMData
	IPv6Data  []IPAMData
}

// NetworkRequest names a network (DeleteNetwork, FreeNetwork).
type NetworkRequest struct{ NetworkID string }

// AllocateNetworkRequest asks a driver of scope global for the options that all hosts of the
// network must share. A manager of a swarm sends this request.
type AllocateNetworkRequest struct {
	NetworkID string
	Options   map[string]string
	IPv4Data  []IPAMData
	IPv6Data  []IPAMData
}

// AllocateNetworkResponse holds options. In every CreateNetwork they replace the options that the
// user gave.
type AllocateNetworkResponse struct{ Options map[string]string }

// Interface describes an endpoint's interface. An answer may set only fields that were empty in
// the request.
type Interface struct {
	Address     netip.Prefix // the address keeps its host bits
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

// CreateEndpointResponse says what the driver chose. Interface may be nil.
type CreateEndpointResponse struct {
	Interface *Interface `json:",omitempty"`
}

// EndpointRequest names an endpoint (DeleteEndpoint, EndpointOperInfo, Leave,
// RevokeExternalConnectivity).
type EndpointRequest struct {
	NetworkID  string
	EndpointID string
}

// EndpointInfo is the answer to EndpointOperInfo. Docker shows it nowhere.
type EndpointInfo struct {
	Value map[string]any
}

// JoinRequest attaches an endpoint to a sandbox. Since Docker 28, SandboxKey is the path of an
// existing namespace. Before Docker 28, the namespace does not exist yet when `docker run` sends
// the request.
type JoinRequest struct {
	NetworkID  string
	EndpointID string
	SandboxKey string
	Options    Options
}

// InterfaceName says which link of the host Docker must move into the sandbox, and the link's
// name there. The name is DstName, or DstPrefix and a number.
type InterfaceName struct {
	SrcName   string
	DstPrefix string
	DstName   string `json:",omitempty"` // Docker reads it since moby#52866
}

// These are the types of a static route.
const (
	NextHop   = 0 // through the gateway StaticRoute.NextHop
	Connected = 1 // without a gateway
)

// StaticRoute is a route of the sandbox.
type StaticRoute struct {
	Destination netip.Prefix
	RouteType   int
	NextHop     netip.Addr `json:",omitzero"`
}

// JoinResponse says how to attach the sandbox. If InterfaceName is empty, the driver has
// attached the sandbox itself, or there is no link.
type JoinResponse struct {
	InterfaceName         *InterfaceName `json:",omitempty"`
	Gateway               netip.Addr     // has no prefix length
	GatewayIPv6           netip.Addr
	StaticRoutes          []StaticRoute `json:",omitempty"`
	DisableGatewayService bool          `json:",omitempty"`
}

// ConnectivityRequest connects an endpoint to networks outside the host. It has the same options
// as JoinRequest.
type ConnectivityRequest struct {
	NetworkID  string
	EndpointID string
	Options    Options
}

// DiscoverNode is the DiscoveryType for a host.
const DiscoverNode = 1

// DiscoveryRequest reports a host that has come or gone.
type DiscoveryRequest struct {
	DiscoveryType int
	DiscoveryData DiscoveryData
}

// DiscoveryData describes a host.
type DiscoveryData struct {
	Address     string
	BindAddress string
	Self        bool
}

// NetworkDriver has the methods that every network driver must implement. Connectivity,
// GatewayChecker, Allocator and Discoverer are optional. If the driver lacks a method, the server
// answers 404, as Docker expects.
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

// Connectivity publishes ports. If dockerd was restarted with live-restore, it does not call
// RevokeExternalConnectivity later. So Leave must remove the ports too.
type Connectivity interface {
	ProgramExternalConnectivity(context.Context, *ConnectivityRequest) error
	RevokeExternalConnectivity(context.Context, *EndpointRequest) error
}

// GatewayChecker says which gateways a network does not need. A driver with these methods must
// set GwAllocChecker in its Capabilities.
type GatewayChecker interface {
	GwAllocCheck(context.Context, *GwAllocCheckRequest) (*GwAllocCheckResponse, error)
}

// Allocator allocates and frees networks on a swarm's manager. Only a driver of scope global needs it.
type Allocator interface {
	AllocateNetwork(context.Context, *AllocateNetworkRequest) (*AllocateNetworkResponse, error)
	FreeNetwork(context.Context, *NetworkRequest) error
}

// Discoverer receives the hosts that come and go.
type Discoverer interface {
	DiscoverNew(context.Context, *DiscoveryRequest) error
	DiscoverDelete(context.Context, *DiscoveryRequest) error
}

// IPAMCapabilities is the answer to IpamDriver.GetCapabilities.
type IPAMCapabilities struct {
	RequiresMACAddress    bool // every RequestAddress of an endpoint must contain its MAC address
	RequiresRequestReplay bool // dockerd must repeat its earlier requests when it starts
}

// AddressSpaces names the driver's address spaces.
type AddressSpaces struct {
	LocalDefaultAddressSpace  string
	GlobalDefaultAddressSpace string
}

// RequestPoolRequest asks for a pool.
type RequestPoolRequest struct {
	AddressSpace string
	Pool         string // CIDR (`--subnet`); if "", the driver chooses
	SubPool      string // CIDR (`--ip-range`)
	Options      map[string]string
	V6           bool
}

// RequestPoolResponse describes the pool that the driver gave.
type RequestPoolResponse struct {
	PoolID string // a text of the driver's choice; later calls name the pool by it
	Pool   netip.Prefix
	Data   map[string]string // OptionGateway holds a CIDR; if it is set, Docker does not request a gateway
}

// ReleasePoolRequest gives a pool back.
type ReleasePoolRequest struct{ PoolID string }

// RequestAddressRequest asks for an address.
type RequestAddressRequest struct {
	PoolID  string
	Address netip.Addr // the requested address; if zero, the driver chooses
	Options map[string]string
}

// RequestAddressResponse has an address, with the prefix length of the pool.
type RequestAddressResponse struct {
	Address netip.Prefix // the address keeps its host bits
	Data    map[string]string
}

// ReleaseAddressRequest gives an address back.
type ReleaseAddressRequest struct {
	PoolID  string
	Address netip.Addr
}

// IPAMDriver gives out addresses. A call names only the pool, not the network or the endpoint. If
// the driver requires the MAC address, a call names that too.
type IPAMDriver interface {
	IPAMCapabilities(context.Context) (*IPAMCapabilities, error)
	AddressSpaces(context.Context) (*AddressSpaces, error)
	RequestPool(context.Context, *RequestPoolRequest) (*RequestPoolResponse, error)
	ReleasePool(context.Context, *ReleasePoolRequest) error
	RequestAddress(context.Context, *RequestAddressRequest) (*RequestAddressResponse, error)
	ReleaseAddress(context.Context, *ReleaseAddressRequest) error
}
