// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnm

import (
	"context"
	"net/netip"
)

// IPAMCapabilities is the answer to IpamDriver.GetCapabilities.
type IPAMCapabilities struct {
	RequiresMACAddress    bool // every RequestAddress of an endpoint must contain its MAC
	RequiresRequestReplay bool // dockerd repeats all requests when it starts
}

// AddressSpaces names the driver's address spaces.
type AddressSpaces struct {
	LocalDefaultAddressSpace  string
	GlobalDefaultAddressSpace string
}

// RequestPoolRequest asks for a pool.
type RequestPoolRequest struct {
	AddressSpace string
	Pool         string // CIDR (`--subnet`); "" lets the driver choose
	SubPool      string // CIDR (`--ip-range`)
	Options      map[string]string
	V6           bool
}

// RequestPoolResponse is a pool.
type RequestPoolResponse struct {
	PoolID string // any text; later calls name the pool by it
	Pool   netip.Prefix
	Data   map[string]string // OptionGateway: CIDR; Docker then requests no gateway
}

// ReleasePoolRequest gives a pool back.
type ReleasePoolRequest struct{ PoolID string }

// RequestAddressRequest asks for an address.
type RequestAddressRequest struct {
	PoolID  string
	Address netip.Addr // the requested address, or zero
	Options map[string]string
}

// RequestAddressResponse is an address with the pool's prefix length.
type RequestAddressResponse struct {
	Address netip.Prefix // host bits kept
	Data    map[string]string
}

// ReleaseAddressRequest gives an address back.
type ReleaseAddressRequest struct {
	PoolID  string
	Address netip.Addr
}

// IPAMDriver gives out addresses. It never learns the network or the endpoint: it only
// gets PoolID and, if required, the MAC.
type IPAMDriver interface {
	IPAMCapabilities(context.Context) (*IPAMCapabilities, error)
	AddressSpaces(context.Context) (*AddressSpaces, error)
	RequestPool(context.Context, *RequestPoolRequest) (*RequestPoolResponse, error)
	ReleasePool(context.Context, *ReleasePoolRequest) error
	RequestAddress(context.Context, *RequestAddressRequest) (*RequestAddressResponse, error)
	ReleaseAddress(context.Context, *ReleaseAddressRequest) error
}
