// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/cnm/remote"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Keeper manages the pools of the network of a request.
type Keeper struct {
	conf   *Section
	r      *plugin.Request
	state  *remote.Dir
	client *cnm.Client
	want   *State
}

// NewKeeper checks the configuration. It calls no driver.
func NewKeeper(r *plugin.Request, conf *Section) (*Keeper, error) {
	want, err := conf.load()
	if err != nil {
		return nil, err
	}
	return &Keeper{conf: conf, r: r, state: remote.Of(r), want: want}, nil
}

// Client returns a client of the driver. It searches for the driver at the first call.
func (k *Keeper) Client() (*cnm.Client, error) {
	if k.client == nil {
		c, err := k.conf.Client(k.r)
		if err != nil {
			return nil, err
		}
		k.client = c
	}
	return k.client, nil
}

// Wanted returns the requests that Ensure would send. Dry runs use it.
func (k *Keeper) Wanted() *State { return k.want }

// Ensure requests the pools once for each network. skip says which families need no gateway. If
// the configuration changed while attachments use the pools, Ensure refuses it.
func (k *Keeper) Ensure(ctx context.Context, skip cnm.GwAllocCheckResponse) (*State, error) {
	unlock, err := k.state.Lock(ctx, remote.Pools, k.r.Network)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return k.ensure(ctx, skip)
}

func (k *Keeper) ensure(ctx context.Context, skip cnm.GwAllocCheckResponse) (*State, error) {
	have, err := remote.LoadWhole[State](k.state, k.r, remote.Pools)
	switch {
	case err != nil:
		return nil, err
	case have != nil && have.Hash == k.want.Hash && have.done():
		return have, k.replay(ctx, have)
	case have != nil:
		if err := k.replace(ctx, have); err != nil {
			return nil, err
		}
	}
	return k.request(ctx, skip)
}

// Given returns what the driver gave. It returns nil if a part is missing, or if the pools belong
// to another configuration.
func (k *Keeper) Given() *State {
	s, err := remote.Load[State](k.state, remote.Pools, k.r.Network)
	if err != nil || s == nil || s.Hash != k.want.Hash || !s.done() {
		return nil
	}
	return s
}

func (s *State) done() bool {
	return !slices.ContainsFunc(s.Pools, func(p *Pool) bool { return !p.Done })
}

// replace gives back the pools of an old configuration, or the pools that a killed ADD had requested.
func (k *Keeper) replace(ctx context.Context, have *State) error {
	if have.done() {
		n, err := k.state.Members(k.r.Network, name)
		if err != nil {
			return err
		}
		if n > 0 {
			return spec.Invalid("the pools of network %s were asked for with another configuration, and %d attachments use them", k.r.Network, n).
				WithDetails("detach them first, or give the network another name")
		}
	}
	return k.give(ctx, have)
}

// request requests every pool and records each answer at once. If a later request fails, request
// gives everything back.
func (k *Keeper) request(ctx context.Context, skip cnm.GwAllocCheckResponse) (*State, error) {
	c, err := k.Client()
	if err != nil {
		return nil, err
	}
	if err := remote.Ready(ctx, c, cnm.ImplementsIPAM); err != nil {
		return nil, err
	}
	s := k.want
	s.Driver = c.Endpoint()
	if err := k.describe(ctx, s); err != nil {
		return nil, remote.Error(err)
	}
	for _, p := range s.Pools {
		p.Request.AddressSpace = s.Space
		if err := k.fill(ctx, s, p, skip); err != nil {
			return nil, errors.Join(remote.Error(err), k.give(context.WithoutCancel(ctx), s))
		}
	}
	return s, nil
}

// describe asks for the driver's capabilities and the name of its address space.
func (k *Keeper) describe(ctx context.Context, s *State) error {
	caps, err := k.client.IPAMCapabilities(ctx)
	switch {
	case errors.Is(err, cnm.ErrNotImplemented): // the answer of old drivers
	case err != nil:
		return err
	default:
		s.RequiresMAC, s.RequiresReplay = caps.RequiresMACAddress, caps.RequiresRequestReplay
		s.Boot = k.state.Boot()
	}
	if s.Space != "" {
		return nil
	}
	spaces, err := k.client.AddressSpaces(ctx)
	if err != nil {
		return err
	}
	if s.Space = spaces.LocalDefaultAddressSpace; s.Space == "" {
		return k.bad("GetDefaultAddressSpaces", "no local address space")
	}
	return nil
}

// fill requests one pool, its gateway and its auxiliary addresses.
func (k *Keeper) fill(ctx context.Context, s *State, p *Pool, skip cnm.GwAllocCheckResponse) error {
	got, err := k.client.RequestPool(ctx, &p.Request)
	if err != nil {
		return withPoolHint(err)
	}
	p.ID, p.Prefix = got.PoolID, got.Pool // recorded before it is checked, so that a refused pool can be given back
	if got.PoolID == "" || !got.Pool.IsValid() || got.Pool.Addr().Is6() != p.Request.V6 {
		return k.bad("RequestPool", "pool id %q, pool %v", got.PoolID, got.Pool)
	}
	if err := k.save(s); err != nil {
		return err
	}
	if err := k.gateway(ctx, s, p, got.Data[cnm.OptionGateway], skip); err != nil {
		return err
	}
	for name, a := range p.Aux {
		has, err := k.address(ctx, p, a, nil)
		if err != nil {
			return err
		}
		if p.HasAux == nil {
			p.HasAux = map[string]netip.Prefix{}
		}
		p.HasAux[name] = has
		if err := k.save(s); err != nil {
			return err
		}
	}
	p.Done = true
	return k.save(s)
}

// withPoolHint adds a hint to the error for a pool that is already in use. The driver does not say who
// uses the pool. It may be our own pool, which an ADD requested before it was killed.
func withPoolHint(err error) error {
	if !cnm.SaysExists(err) {
		return err
	}
	return spec.Errorf(remote.CodeDriver, "%w", err).
		WithDetails("another network has the pool, or an ADD was killed before it got the pool's id: " +
			"release it with the driver's own tools, or ask for another subnet")
}

// gateway takes the gateway that came with the pool. If none came, gateway requests one.
func (k *Keeper) gateway(ctx context.Context, s *State, p *Pool, given string, skip cnm.GwAllocCheckResponse) (err error) {
	switch {
	case given != "":
		if p.Has, err = netip.ParsePrefix(given); err != nil {
			return k.bad("RequestPool", "gateway %q", given)
		}
		return nil
	case p.Request.V6 && skip.SkipIPv6, !p.Request.V6 && skip.SkipIPv4:
		return nil
	}
	p.Has, err = k.address(ctx, p, p.Gateway, map[string]string{cnm.OptionAddressType: cnm.OptionGateway})
	if err != nil {
		return err
	}
	p.Reserved = true
	return k.save(s)
}

// address requests one address of a pool. If the driver gives another address than the requested
// one, address returns that other address with an error, because the driver now counts it as
// used.
func (k *Keeper) address(ctx context.Context, p *Pool, want netip.Addr, options map[string]string) (netip.Prefix, error) {
	got, err := k.client.RequestAddress(ctx, &cnm.RequestAddressRequest{PoolID: p.ID, Address: want, Options: options})
	switch {
	case err != nil:
		return netip.Prefix{}, err
	case !got.Address.IsValid() || got.Address.Addr().Is6() != p.Request.V6:
		return netip.Prefix{}, k.bad("RequestAddress", "address %v of a pool %s", got.Address, p.Prefix)
	case want.IsValid() && got.Address.Addr() != want:
		return got.Address, k.bad("RequestAddress", "%v was asked for, %v given", want, got.Address)
	}
	return got.Address, nil
}

// bad returns the error for an answer that violates the protocol.
func (k *Keeper) bad(method, format string, args ...any) error {
	return fmt.Errorf("driver %s: IpamDriver.%s: %w: %s", k.client.Endpoint(), method, cnm.ErrBadAnswer, fmt.Sprintf(format, args...))
}

// Keeps returns what an address of a pool is reserved for, for example "the gateway's". If the
// address is not reserved, ok is false.
func (p *Pool) Keeps(a netip.Addr) (what string, ok bool) {
	if p.Has.IsValid() && p.Has.Addr() == a {
		return "the gateway's", true
	}
	for name, has := range p.HasAux {
		if has.Addr() == a {
			return fmt.Sprintf("auxAddresses.%s", name), true
		}
	}
	return "", false
}

func (k *Keeper) save(s *State) error { return k.state.Save(remote.Pools, k.r.Network, s) }
