// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmipam

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/cnm/remote"
	"github.com/patchbay-net/patchbay/internal/kernel"
)

// Address requests an address for an attachment. If the driver no longer knows the pool, because
// it restarted without its state, Address requests the pool again and then the address. If
// Address returns an address together with an error, the caller must give the address back.
func (k *Keeper) Address(ctx context.Context, s *State, p *Pool, want netip.Addr, options map[string]string) (netip.Prefix, error) {
	if _, err := k.Client(); err != nil {
		return netip.Prefix{}, err
	}
	got, err := k.address(ctx, p, want, options)
	if !cnm.IsMissing(err) {
		return got, remote.Error(err)
	}
	if rerr := k.again(ctx, s, p); rerr != nil {
		kernel.Warn(k.r, rerr)
		return got, remote.Error(err)
	}
	got, err = k.address(ctx, p, want, options)
	return got, remote.Error(err)
}

// again requests the network's pool again, and every address that is in use. If another ADD has
// just done so, again does nothing.
func (k *Keeper) again(ctx context.Context, s *State, p *Pool) error {
	unlock, err := k.state.Lock(ctx, remote.Pools, k.r.Network)
	if err != nil {
		return err
	}
	defer unlock()
	if now, err := remote.Load[State](k.state, remote.Pools, k.r.Network); err == nil && now != nil && now.Again > s.Again {
		s.adopt(now) // another ADD has requested the pools meanwhile
		return nil
	}
	return k.repeat(ctx, s, p)
}

// adopt copies the driver's present pool ids, of both families, because both may have changed.
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

// replay repeats all requests if the node has booted since they were sent. It does so for a
// driver that sets RequiresRequestReplay: a boot empties such a driver's memory, and the driver
// may not notice.
func (k *Keeper) replay(ctx context.Context, s *State) error {
	if !s.RequiresReplay || s.Boot == k.state.Boot() {
		return nil
	}
	if _, err := k.Client(); err != nil {
		return err
	}
	for _, p := range s.Pools {
		err := k.repeat(ctx, s, p)
		if cnm.Unanswered(err) {
			return remote.Error(err)
		}
		if err != nil { // the driver still knows the pool
			kernel.Warn(k.r, err)
		}
	}
	s.Boot = k.state.Boot()
	return k.save(s)
}

// repeat does the work of again. The caller must hold the lock.
func (k *Keeper) repeat(ctx context.Context, s *State, p *Pool) error {
	request := p.Request
	request.Pool = p.Prefix.String()
	got, err := k.client.RequestPool(ctx, &request)
	if err != nil {
		return err
	}
	if got.PoolID == "" || got.Pool != p.Prefix {
		err := k.bad("RequestPool", "%s was asked for again, pool id %q, pool %v given", p.Prefix, got.PoolID, got.Pool)
		if got.PoolID != "" && got.PoolID != p.ID { // otherwise each ADD would leave another pool at the driver
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

// out returns the addresses of one family that attachments have. All of them belong to the
// network's pool of that family, even those that were requested under an earlier pool id. repeat
// must request them again: otherwise the driver would give them to other containers.
func (k *Keeper) out(v6 bool) (addrs []netip.Addr) {
	list, _, err := k.state.List(k.r.Network, name)
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

// IDOf returns the present id of the pool of an address. If the driver forgot the pool and the
// pool was requested again, this id differs from the recorded one.
func IDOf(s *remote.Dir, network string, a remote.Address) string {
	now, err := remote.Load[State](s, remote.Pools, network)
	if err != nil || now == nil {
		return a.PoolID
	}
	for _, p := range now.Pools {
		if p.ID != "" && p.Request.V6 == a.Address.Addr().Is6() {
			return p.ID
		}
	}
	return a.PoolID
}

// Release gives the pools of a network back, unless an attachment uses them.
func (k *Keeper) Release(ctx context.Context) error {
	unlock, err := k.state.Lock(ctx, remote.Pools, k.r.Network)
	if err != nil {
		return err
	}
	defer unlock()
	if n, err := k.state.Members(k.r.Network, name); err != nil || n > 0 {
		return err
	}
	have, err := remote.Load[State](k.state, remote.Pools, k.r.Network)
	if err != nil || have == nil {
		return err
	}
	return k.give(ctx, have)
}

// give gives back what the driver gave, in Docker's order, and then removes the state. If the
// driver answers with an error, give removes the state all the same. If the driver does not
// answer, the state stays.
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
	return k.state.Remove(remote.Pools, k.r.Network)
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
		if err := k.answered(c.ReleaseAddress(ctx, &cnm.ReleaseAddressRequest{PoolID: p.ID, Address: a})); err != nil {
			return err
		}
	}
	return k.answered(c.ReleasePool(ctx, &cnm.ReleasePoolRequest{PoolID: p.ID}))
}

// answered turns an error that the driver answered into a warning. If delIgnoreUnreachable is
// set, answered does the same if the driver did not answer.
func (k *Keeper) answered(err error) error {
	if err == nil || cnm.Unanswered(err) && !k.conf.DelIgnoreUnreachable {
		return err
	}
	kernel.Warn(k.r, err)
	return nil
}
