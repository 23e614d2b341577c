// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/cnm"
	"github.com/patchbay-net/patchbay/cnm/remote"
	"github.com/patchbay-net/patchbay/internal/kernel"
)

// Address asks for an address of an attachment. When the driver does not know
// the pool any more, because it restarted without a memory, it is asked for the
// same pool once more. An address with an error is to be given back.
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

// again asks for the pool that the network has, and for everything that is out
// of it, unless another ADD has just done so.
func (k *Keeper) again(ctx context.Context, s *State, p *Pool) error {
	unlock, err := k.store.Lock(ctx, remote.Pools, k.r.Network)
	if err != nil {
		return err
	}
	defer unlock()
	now := new(State)
	if ok, err := k.store.Load(remote.Pools, k.r.Network, now); err == nil && ok && now.Again > s.Again {
		s.adopt(now) // another ADD was faster
		return nil
	}
	return k.repeat(ctx, s, p)
}

// adopt takes over by which ids the driver knows the pools now: of both families,
// as both may be other ones.
func (s *State) adopt(now *State) {
	s.Again = now.Again
	for _, p := range s.Pools {
		for _, q := range now.Pools {
			if q.Prefix == p.Prefix {
				p.ID = q.ID
			}
		}
	}
}

// replay asks a driver that RequiresRequestReplay for everything again when the
// node has booted since: what it keeps in memory is gone, and it may not notice.
func (k *Keeper) replay(ctx context.Context, s *State) error {
	if !s.RequiresReplay || s.Boot == k.store.Boot() {
		return nil
	}
	if _, err := k.Client(); err != nil {
		return err
	}
	for _, p := range s.Pools {
		err := k.repeat(ctx, s, p)
		if cnm.Gone(err) {
			return remote.Error(err)
		}
		if err != nil { // it has kept it
			kernel.Warn(k.r, err)
		}
	}
	s.Boot = k.store.Boot()
	return k.save(s)
}

// repeat is again with the lock held.
func (k *Keeper) repeat(ctx context.Context, s *State, p *Pool) error {
	request := p.Request
	request.Pool = p.Prefix.String()
	got, err := k.client.RequestPool(ctx, &request)
	if err != nil {
		return err
	}
	if got.PoolID == "" || got.Pool != p.Prefix {
		err := k.bad("RequestPool", "%s was asked for again, pool id %q, pool %v given", p.Prefix, got.PoolID, got.Pool)
		if got.PoolID != "" && got.PoolID != p.ID { // each ADD would leave one with the driver
			err = errors.Join(err, k.client.ReleasePool(ctx, &cnm.ReleasePoolRequest{PoolID: got.PoolID}))
		}
		return err
	}
	p.ID = got.PoolID
	s.Again++
	errs := []error{k.save(s)}
	if p.Reserved {
		_, err := k.address(ctx, p, p.Has.Addr(), map[string]string{cnm.OptionAddressType: cnm.OptionGateway})
		errs = append(errs, err)
	}
	for _, a := range append(slices.Collect(maps.Values(p.Aux)), k.out(p.Request.V6)...) {
		_, err := k.address(ctx, p, a, nil)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		kernel.Warn(k.r, err)
	}
	return nil
}

// out are the addresses of a family that attachments have, of its one pool by
// whatever id: without being told, the driver would give them out once more.
func (k *Keeper) out(v6 bool) (addrs []netip.Addr) {
	list, _, err := k.store.List(k.r.Network, Plugin)
	if err != nil {
		kernel.Warn(k.r, err)
	}
	for _, a := range list {
		for _, has := range a.Addresses {
			if has.Address.Addr().Is6() == v6 {
				addrs = append(addrs, has.Address.Addr())
			}
		}
	}
	return addrs
}

// IDOf is the id by which the driver knows the pool of an address now. It may be
// another than when it gave the address: of a pool that it forgot and was asked
// for again.
func IDOf(s *remote.Store, network string, a remote.Address) string {
	now := new(State)
	if ok, err := s.Load(remote.Pools, network, now); err != nil || !ok {
		return a.PoolID
	}
	for _, p := range now.Pools {
		if p.ID != "" && p.Request.V6 == a.Address.Addr().Is6() {
			return p.ID
		}
	}
	return a.PoolID
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

// heard turns a driver's own error into a warning, and that it is away for good.
func (k *Keeper) heard(err error) error {
	if err == nil || cnm.Gone(err) && !k.conf.DelIgnoreUnreachable {
		return err
	}
	kernel.Warn(k.r, err)
	return nil
}
