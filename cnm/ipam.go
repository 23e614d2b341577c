// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnm

import (
	"context"
	"net/netip"
)

// IPAMCapabilities is the answer to IpamDriver.GetCapabilities.
type IPAMCapabilities struct {
	RequiresMACAddress    bool // every RequestAddress of an endpoint must contain its MAC address
	RequiresRequestReplay bool // dockerd must repeat all requests when it starts
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
	PoolID string // any text; later calls name the pool by it
	Pool   netip.Prefix
	Data   map[string]string // OptionGateway: CIDR; if it is set, Docker does not request a gateway
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
	Address netip.Prefix // with its host bits
	Data    map[string]string
}

// ReleaseAddressRequest gives an address back.
type ReleaseAddressRequest struct {
	PoolID  string
	Address netip.Addr
}

// IPAMDriver gives out addresses. It does not get to know the network or the endpoint, only the
// pool id and, if it requires that, the MAC address.
type IPAMDriver interface {
	IPAMCapabilities(context.Context) (*IPAMCapabilities, error)
	AddressSpaces(context.Context) (*AddressSpaces, error)
	RequestPool(context.Context, *RequestPoolRequest) (*RequestPoolResponse, error)
	ReleasePool(context.Context, *ReleasePoolRequest) error
	RequestAddress(context.Context, *RequestAddressRequest) (*RequestAddressResponse, error)
	ReleaseAddress(context.Context, *ReleaseAddressRequest) error
}
