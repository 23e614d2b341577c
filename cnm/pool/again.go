// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"errors"
	"net/netip"

	"github.com/patchbay-net/patchbay/cnm"
	"github.com/patchbay-net/patchbay/cnm/remote"
	"github.com/patchbay-net/patchbay/internal/kernel"
)

// Address asks for an address of an attachment. When the driver does not know
// the pool any more, because it restarted without a memory, it is asked for the
// same pool once more.
func (k *Keeper) Address(ctx context.Context, s *State, p *Pool, want netip.Addr, options map[string]string) (netip.Prefix, error) {
	if _, err := k.Client(); err != nil {
		return netip.Prefix{}, err
	}
	got, err := k.address(ctx, p, want, options)
	if !cnm.SaysMissing(err) {
		return got, remote.Error(err)
	}
	if rerr := k.again(ctx, s, p); rerr != nil {
		kernel.Warn(k.r, rerr)
		return got, remote.Error(err)
	}
	got, err = k.address(ctx, p, want, options)
	return got, remote.Error(err)
}

// again asks for the pool that the network has.
func (k *Keeper) again(ctx context.Context, s *State, p *Pool) error {
	unlock, err := k.store.Lock(ctx, remote.Pools, k.r.Network)
	if err != nil {
		return err
	}
	defer unlock()
	request := p.Request
	request.Pool = p.Prefix.String()
	got, err := k.client.RequestPool(ctx, &request)
	if err != nil {
		return err
	}
	if got.PoolID == "" || got.Pool != p.Prefix {
		return cnm.ErrBadAnswer
	}
	p.ID = got.PoolID
	errs := []error{k.save(s)}
	if p.Reserved {
		_, err := k.address(ctx, p, p.Has.Addr(), map[string]string{cnm.OptionAddressType: cnm.OptionGateway})
		errs = append(errs, err)
	}
	for _, a := range p.Aux {
		_, err := k.address(ctx, p, a, nil)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Release gives the pools of a network back if no attachment uses them.
func (k *Keeper) Release(ctx context.Context) error {
	unlock, err := k.store.Lock(ctx, remote.Pools, k.r.Network)
	if err != nil {
		return err
	}
	defer unlock()
	list, torn, err := k.store.List(k.r.Network, Plugin)
	if err != nil || len(list)+len(torn) > 0 {
		return err
	}
	have := new(State)
	if ok, err := k.store.Load(remote.Pools, k.r.Network, have); err != nil || !ok {
		return err
	}
	return k.give(ctx, have)
}

// give releases what the driver gave, in Docker's order, and forgets it. What
// the driver answers is no reason to keep it; a driver that is away is.
func (k *Keeper) give(ctx context.Context, s *State) error {
	c, err := k.conf.Recorded(k.r, s.Driver)
	if err != nil {
		return err
	}
	for _, p := range s.Pools {
		if p.ID == "" {
			continue
		}
		if err := k.giveOne(ctx, c, p); err != nil {
			return errors.Join(remote.Error(err), k.save(s))
		}
		p.ID, p.Has, p.Reserved, p.HasAux, p.Done = "", netip.Prefix{}, false, nil, false
	}
	return k.store.Remove(remote.Pools, k.r.Network)
}

func (k *Keeper) giveOne(ctx context.Context, c *cnm.Client, p *Pool) error {
	var addrs []netip.Addr
	if p.Reserved {
		addrs = append(addrs, p.Has.Addr())
	}
	for _, a := range p.HasAux {
		addrs = append(addrs, a.Addr())
	}
	for _, a := range addrs {
		if err := k.heard(c.ReleaseAddress(ctx, &cnm.ReleaseAddressRequest{PoolID: p.ID, Address: a})); err != nil {
			return err
		}
	}
	return k.heard(c.ReleasePool(ctx, &cnm.ReleasePoolRequest{PoolID: p.ID}))
}

// heard turns a driver's own error into a warning.
func (k *Keeper) heard(err error) error {
	if err == nil || cnm.Gone(err) {
		return err
	}
	kernel.Warn(k.r, err)
	return nil
}
