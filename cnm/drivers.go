// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnm

import "context"

// Client implements all interfaces that a driver can have.
var (
	_ NetworkDriver  = (*Client)(nil)
	_ Connectivity   = (*Client)(nil)
	_ GatewayChecker = (*Client)(nil)
	_ Allocator      = (*Client)(nil)
	_ Discoverer     = (*Client)(nil)
	_ IPAMDriver     = (*Client)(nil)
)

// Capabilities calls NetworkDriver.GetCapabilities.
func (c *Client) Capabilities(ctx context.Context) (*Capabilities, error) {
	return query[Capabilities](ctx, c, "NetworkDriver.GetCapabilities", nil)
}

// GwAllocCheck calls NetworkDriver.GwAllocCheck.
func (c *Client) GwAllocCheck(ctx context.Context, in *GwAllocCheckRequest) (*GwAllocCheckResponse, error) {
	return query[GwAllocCheckResponse](ctx, c, "NetworkDriver.GwAllocCheck", in)
}

// AllocateNetwork calls NetworkDriver.AllocateNetwork.
func (c *Client) AllocateNetwork(ctx context.Context, in *AllocateNetworkRequest) (*AllocateNetworkResponse, error) {
	return query[AllocateNetworkResponse](ctx, c, "NetworkDriver.AllocateNetwork", in)
}

// FreeNetwork calls NetworkDriver.FreeNetwork.
func (c *Client) FreeNetwork(ctx context.Context, in *NetworkRequest) error {
	return c.Call(ctx, "NetworkDriver.FreeNetwork", in, nil)
}

// CreateNetwork calls NetworkDriver.CreateNetwork.
func (c *Client) CreateNetwork(ctx context.Context, in *CreateNetworkRequest) error {
	return c.Call(ctx, "NetworkDriver.CreateNetwork", in, nil)
}

// DeleteNetwork calls NetworkDriver.DeleteNetwork.
func (c *Client) DeleteNetwork(ctx context.Context, in *NetworkRequest) error {
	return c.Call(ctx, "NetworkDriver.DeleteNetwork", in, nil)
}

// CreateEndpoint calls NetworkDriver.CreateEndpoint.
func (c *Client) CreateEndpoint(ctx context.Context, in *CreateEndpointRequest) (*CreateEndpointResponse, error) {
	return query[CreateEndpointResponse](ctx, c, "NetworkDriver.CreateEndpoint", in)
}

// DeleteEndpoint calls NetworkDriver.DeleteEndpoint.
func (c *Client) DeleteEndpoint(ctx context.Context, in *EndpointRequest) error {
	return c.Call(ctx, "NetworkDriver.DeleteEndpoint", in, nil)
}

// EndpointOperInfo calls NetworkDriver.EndpointOperInfo.
func (c *Client) EndpointOperInfo(ctx context.Context, in *EndpointRequest) (*EndpointInfo, error) {
	return query[EndpointInfo](ctx, c, "NetworkDriver.EndpointOperInfo", in)
}

// Join calls NetworkDriver.Join.
func (c *Client) Join(ctx context.Context, in *JoinRequest) (*JoinResponse, error) {
	return query[JoinResponse](ctx, c, "NetworkDriver.Join", in)
}

// Leave calls NetworkDriver.Leave.
func (c *Client) Leave(ctx context.Context, in *EndpointRequest) error {
	return c.Call(ctx, "NetworkDriver.Leave", in, nil)
}

// ProgramExternalConnectivity calls NetworkDriver.ProgramExternalConnectivity. If the driver does
// not implement the method, that is not an error.
func (c *Client) ProgramExternalConnectivity(ctx context.Context, in *ConnectivityRequest) error {
	return c.Call(ctx, "NetworkDriver.ProgramExternalConnectivity", in, nil)
}

// RevokeExternalConnectivity calls NetworkDriver.RevokeExternalConnectivity. If the driver does
// not implement the method, that is not an error.
func (c *Client) RevokeExternalConnectivity(ctx context.Context, in *EndpointRequest) error {
	return c.Call(ctx, "NetworkDriver.RevokeExternalConnectivity", in, nil)
}

// DiscoverNew calls NetworkDriver.DiscoverNew.
func (c *Client) DiscoverNew(ctx context.Context, in *DiscoveryRequest) error {
	return c.Call(ctx, "NetworkDriver.DiscoverNew", in, nil)
}

// DiscoverDelete calls NetworkDriver.DiscoverDelete.
func (c *Client) DiscoverDelete(ctx context.Context, in *DiscoveryRequest) error {
	return c.Call(ctx, "NetworkDriver.DiscoverDelete", in, nil)
}

// IPAMCapabilities calls IpamDriver.GetCapabilities. A driver without this method has no
// capabilities.
func (c *Client) IPAMCapabilities(ctx context.Context) (*IPAMCapabilities, error) {
	return query[IPAMCapabilities](ctx, c, "IpamDriver.GetCapabilities", nil)
}

// AddressSpaces calls IpamDriver.GetDefaultAddressSpaces.
func (c *Client) AddressSpaces(ctx context.Context) (*AddressSpaces, error) {
	return query[AddressSpaces](ctx, c, "IpamDriver.GetDefaultAddressSpaces", nil)
}

// RequestPool calls IpamDriver.RequestPool.
func (c *Client) RequestPool(ctx context.Context, in *RequestPoolRequest) (*RequestPoolResponse, error) {
	return query[RequestPoolResponse](ctx, c, "IpamDriver.RequestPool", in)
}

// ReleasePool calls IpamDriver.ReleasePool.
func (c *Client) ReleasePool(ctx context.Context, in *ReleasePoolRequest) error {
	return c.Call(ctx, "IpamDriver.ReleasePool", in, nil)
}

// RequestAddress calls IpamDriver.RequestAddress.
func (c *Client) RequestAddress(ctx context.Context, in *RequestAddressRequest) (*RequestAddressResponse, error) {
	return query[RequestAddressResponse](ctx, c, "IpamDriver.RequestAddress", in)
}

// ReleaseAddress calls IpamDriver.ReleaseAddress.
func (c *Client) ReleaseAddress(ctx context.Context, in *ReleaseAddressRequest) error {
	return c.Call(ctx, "IpamDriver.ReleaseAddress", in, nil)
}
