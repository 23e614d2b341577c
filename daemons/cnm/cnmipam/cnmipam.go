// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package cnmipam is the plugin `cnm-ipam`, which gives any CNI plugin addresses from a Docker
// IPAM driver, such as Infoblox's or Calico's. The driver's pools belong to the network. The
// first ADD requests the pools while it holds the network's lock, and records every answer. If
// the driver has forgotten the pools, an ADD requests them again (Keeper). Each attachment has
// one address from each pool.
package cnmipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/cnm/remote"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

const name = "cnm-ipam"

// Plugin has the name, the versions and the functions of this plugin.
var Plugin = plugin.Plugin{
	Name:         name,
	Kind:         plugin.IPAM,
	About:        "gives addresses of a Docker IPAM driver",
	Capabilities: []string{"ips", "mac"},
	Conf:         func() any { return new(Conf) },

	Add:    add,
	Del:    del,
	Check:  check,
	GC:     gc,
	Status: status,
}

// Conf has the keys that this plugin reads from the calling plugin's configuration.
type Conf struct {
	IPAM *Section `json:"ipam"`

	remote.Wanted
}

func decode(r *plugin.Request) (*Conf, error) {
	c := new(Conf)
	if err := r.Decode(c); err != nil {
		return nil, err
	}
	if c.IPAM == nil {
		return nil, spec.Invalid("IPAM config missing 'ipam' key")
	}
	return c, nil
}

// ipam is the state of one request.
type ipam struct {
	r      *plugin.Request
	conf   *Conf
	keeper *Keeper
	state  *remote.Dir
	wanted []remote.AddressWanted
	away   error // why the driver did not answer the release of an address
}

func load(r *plugin.Request) (*ipam, error) {
	conf, err := decode(r)
	if err != nil {
		return nil, err
	}
	i := &ipam{r: r, conf: conf, state: remote.Of(r)}
	if i.keeper, err = NewKeeper(r, conf.IPAM); err != nil {
		return nil, err
	}
	i.wanted, err = conf.IPs(r)
	return i, err
}

func add(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
	i, err := load(r)
	if err != nil {
		return nil, err
	}
	if r.Session.Dry != nil {
		return i.explain(), nil
	}
	if err := i.state.Fresh(r, name, func(a *remote.DriverState) error { return i.endOld(ctx, a) }); err != nil {
		return nil, err
	}
	i.state.EndOthers(r, name, func(a *remote.DriverState) error { return i.end(ctx, a) })
	if err := r.Step("pools"); err != nil {
		return nil, err
	}
	pools, err := i.keeper.Ensure(ctx, cnm.GwAllocCheckResponse{})
	if err != nil {
		return nil, err
	}
	if err := i.canServe(pools); err != nil {
		return nil, err
	}
	a := i.state.New(r, pools.Driver)
	if err := i.state.Begin(r, name, a); err != nil {
		return nil, err
	}
	r.Undo(func(ctx context.Context) error { return i.end(ctx, a) })
	for _, p := range pools.Pools {
		if err := i.request(ctx, pools, p, a); err != nil {
			return nil, err
		}
	}
	return i.result(a.Addresses), nil
}

// canServe refuses two kinds of requested addresses: one that is in no pool, and a second one in
// the same pool.
func (i *ipam) canServe(pools *State) error {
	used := map[*Pool]bool{}
	for _, w := range i.wanted {
		p := poolOf(pools, w.Addr)
		switch {
		case p == nil:
			return spec.Invalid("requested IP address %s is not in any pool of network %s", w.Addr, i.r.Network)
		case used[p]:
			return spec.Invalid("requested IP address %s is the second of pool %s: an endpoint has only one of each pool", w.Addr, p.Prefix)
		}
		used[p] = true
	}
	return nil
}

func poolOf(pools *State, a netip.Addr) *Pool {
	for _, p := range pools.Pools {
		if p.Prefix.Contains(a) {
			return p
		}
	}
	return nil
}

// request requests an address of one pool and records it. If the ADD fails later, the undo of the
// record gives the address back.
func (i *ipam) request(ctx context.Context, pools *State, p *Pool, a *remote.DriverState) error {
	if err := i.r.Step("request address of " + p.Prefix.String()); err != nil {
		return err
	}
	options := map[string]string{cnm.OptionEndpointName: i.r.ContainerID}
	if pools.RequiresMAC {
		mac, err := remote.ChosenMAC(i.r)
		if err != nil {
			return err
		}
		options[cnm.OptionMAC] = mac.String()
	}
	var want netip.Addr
	for _, w := range i.wanted {
		if p.Prefix.Contains(w.Addr) {
			want = w.Addr
		}
	}
	got, err := i.keeper.Address(ctx, pools, p, want, options)
	if !got.IsValid() {
		return err
	}
	if err := i.keep(ctx, p, a, got); err != nil {
		return err
	}
	return err // the driver gave an address that was not requested; the undo gives it back
}

// keep records an address. If another container has the address, keep refuses it.
func (i *ipam) keep(ctx context.Context, p *Pool, a *remote.DriverState, got netip.Prefix) error {
	const method = "IpamDriver.RequestAddress"
	if what, ok := p.Keeps(got.Addr()); ok {
		return fmt.Errorf("driver %s: %w", a.Driver, remote.GivenTwice(method, got, what))
	}
	// From here on, the undo decides whether to give the address back.
	a.Addresses = append(a.Addresses, remote.Address{PoolID: p.ID, Address: got, Gateway: p.Has.Addr()})
	unlock, err := i.state.Lock(ctx, remote.Pools, i.r.Network)
	if err != nil {
		return err
	}
	defer unlock()
	if err := i.state.RefuseUsed(i.r, name, method, got); err != nil {
		return fmt.Errorf("driver %s: %w", a.Driver, err)
	}
	return i.state.Write(i.r.Network, name, a)
}

// release gives an address back. If another container has the address now, release leaves it
// alone. Two mistakes lead to that case: the driver gave the address twice, or it carried out an
// earlier release but its answer was lost.
func (i *ipam) release(ctx context.Context, c *cnm.Client, a *remote.DriverState, has remote.Address) error {
	other, err := i.state.Holder(i.r.Network, name, a.Owner, has.Address.Addr())
	switch {
	case other != nil:
		kernel.Warn(i.r, fmt.Errorf("driver %s: address %s is not released: container %s has it", c.Endpoint(), has.Address, other.ContainerID))
		return nil
	case err != nil:
		kernel.Warn(i.r, err)
	}
	id := IDOf(i.state, i.r.Network, has)
	return c.ReleaseAddress(ctx, &cnm.ReleaseAddressRequest{PoolID: id, Address: has.Address.Addr()})
}

func (i *ipam) result(addrs []remote.Address) *spec.Result {
	out := &spec.Result{Routes: i.conf.IPAM.Routes, DNS: i.conf.IPAM.DNS}
	for _, a := range addrs {
		out.IPs = append(out.IPs, spec.IPConfig{Address: a.Address, Gateway: a.Gateway})
	}
	return out
}

// explain lists the requests that an ADD would send. It cannot know the driver's answers.
func (i *ipam) explain() *spec.Result {
	for _, p := range i.keeper.Wanted().Pools {
		remote.Explain(i.r, "IpamDriver.RequestPool %q (once a network), RequestAddress", p.Request.Pool)
	}
	return i.result(nil)
}

// end releases the addresses of an attachment and removes its record. If the driver does not
// answer, the record stays for a later call.
func (i *ipam) end(ctx context.Context, a *remote.DriverState) error {
	return i.state.Finish(i.r, name, a, i.releaseAll(ctx, a), i.conf.IPAM.DelIgnoreUnreachable)
}

// endOld ends the attachment of an earlier ADD under the same name. This ADD will replace its
// record. So if the driver could not release an address in that record,
// endOld fails. If the connection to the driver breaks during the call, the release counts as
// done.
func (i *ipam) endOld(ctx context.Context, a *remote.DriverState) error {
	err := i.end(ctx, a)
	if err == nil && !errors.Is(i.away, cnm.ErrLost) && !i.conf.IPAM.DelIgnoreUnreachable {
		err = remote.Error(i.away)
	}
	return err
}

// releaseAll releases every address. If the driver did not answer some of the calls, releaseAll
// returns the error of the first of them. An error in a driver's answer causes only a warning.
func (i *ipam) releaseAll(ctx context.Context, a *remote.DriverState) error {
	if len(a.Addresses) == 0 || i.away != nil {
		return i.away
	}
	c, err := i.conf.IPAM.Recorded(i.r, a.Driver)
	if err != nil {
		return fmt.Errorf("%w: %w", cnm.ErrUnreachable, err) // for example because its certificate is gone
	}
	i.state.MarkEnded(i.r, name, a)
	for _, addr := range a.Addresses {
		if i.away = remote.Answered(i.r, i.release(ctx, c, a, addr)); i.away != nil {
			break
		}
	}
	return i.away
}

// careful loads what DEL and GC need. These verbs must work with any configuration.
func careful(r *plugin.Request) *ipam {
	i := &ipam{r: r, state: remote.Of(r), conf: new(Conf)}
	if err := r.Decode(i.conf); err != nil {
		kernel.Warn(r, err)
	}
	if i.conf.IPAM == nil {
		i.conf.IPAM = new(Section)
	}
	return i
}

func del(ctx context.Context, r *plugin.Request) error {
	i := careful(r)
	a, torn := i.state.ReadLocked(r, name)
	switch {
	case torn:
		return i.state.Records.Remove(r.Network, r.Owner, name)
	case a == nil:
		return nil
	}
	return i.end(ctx, a)
}

// check returns an error if the attachment has no record, or if one of its addresses is missing
// in the previous result.
func check(_ context.Context, r *plugin.Request) error {
	if _, err := load(r); err != nil {
		return err
	}
	if r.Prev() == nil {
		return spec.Invalid("Required prevResult missing")
	}
	a, err := remote.Of(r).Read(r, name)
	if err != nil {
		return err
	}
	if a == nil || a.Ended {
		return spec.Errorf(spec.CodeInternal, "cnm-ipam: Failed to find address added by container %v", r.ContainerID)
	}
	for _, addr := range a.Addresses {
		if !slices.ContainsFunc(r.Prev().IPs, func(ip spec.IPConfig) bool { return ip.Address == addr.Address }) {
			return spec.Errorf(spec.CodeInternal, "cnm-ipam: Failed to match addr %v on interface %v", addr.Address, r.IfName)
		}
	}
	return nil
}

// gc ends attachments that are no longer valid. If no attachment is left and keepPool is false,
// gc also releases the pools.
func gc(ctx context.Context, r *plugin.Request) error {
	i := careful(r)
	ok, err := i.state.Collect(r, name, func(a *remote.DriverState) error { return i.end(ctx, a) })
	if keep := i.conf.IPAM.KeepPool; !ok || keep == nil || *keep {
		return err
	}
	k, kerr := NewKeeper(r, i.conf.IPAM)
	if kerr == nil {
		kerr = k.Release(ctx)
	}
	if kerr != nil {
		err = errors.Join(err, fmt.Errorf("release the pools of network %s: %w", r.Network, kerr))
	}
	return err
}

func status(ctx context.Context, r *plugin.Request) error {
	i, err := load(r)
	if err != nil {
		return err
	}
	c, err := i.keeper.Client()
	if err == nil {
		err = remote.Ready(ctx, c, cnm.ImplementsIPAM)
	}
	if err != nil {
		return spec.Errorf(spec.CodeNotAvailable, "%w", err)
	}
	return nil
}
