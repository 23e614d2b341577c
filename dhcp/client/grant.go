// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package client is the DHCP client of one attachment, for both versions of DHCP: what a
// server can be asked (V4, V6), what it has granted (Grant), and the interface in the
// container's namespace (Place) through which it is asked and which gets the address. Each
// request is one try over sockets that are opened in the namespace and closed afterwards.
package client

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/patchbay-net/patchbay/spec"
)

// Grant is one address with its options. It is a value and never changes.
type Grant struct {
	Raw     []byte // the server's message, from which Protocol.Parse makes the rest
	Address netip.Prefix
	Gateway netip.Addr // of routes that name none; or invalid
	Routes  []spec.Route
	DNS     spec.DNS

	// Since the grant: when to ask the same server, when to ask any server, and when the
	// address is no longer ours. T1 <= T2 <= Valid.
	T1, T2, Valid time.Duration
}

// ErrNak is wrapped when a server refuses the address: it must not be used any more.
var ErrNak = errors.New("the server refuses the address")

// ErrSilent is wrapped when no server answered in time.
var ErrSilent = errors.New("no DHCP server answered")

// Protocol is DHCPv4 or DHCPv6 for one attachment. Every function is one try; wait limits
// it.
type Protocol interface {
	// Parse reads a message that a server sent earlier.
	Parse(raw []byte) (*Grant, error)
	// Acquire asks any server for an address.
	Acquire(ctx context.Context, p *Place, wait time.Duration) (*Grant, error)
	// Extend asks the server that granted g for more time (renew), or any server (rebind).
	Extend(ctx context.Context, p *Place, g *Grant, rebind bool, wait time.Duration) (*Grant, error)
	// Release gives g back. It waits for no answer.
	Release(ctx context.Context, p *Place, g *Grant) error
}

// Order gives T1 and T2 valid values: the given parts of the validity where a server sent
// none or invalid ones.
func (g *Grant) Order(t1, t2 float64) {
	if g.T2 <= 0 || g.T2 > g.Valid {
		g.T2 = time.Duration(float64(g.Valid) * t2)
	}
	if g.T1 <= 0 || g.T1 > g.T2 {
		g.T1 = min(time.Duration(float64(g.Valid)*t1), g.T2)
	}
}
