// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmplugin

import (
	"context"
	"errors"
	"net/netip"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/cnm/cnmipam"
	"github.com/patchbay-net/patchbay/daemons/cnm/remote"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/spec"
)

// Network records what a driver was asked for a network (remote.Networks).
type Network struct {
	Driver  cnm.DriverAddr            `json:"driver"`
	Hash    string                    `json:"hash"` // hash of the configuration
	Request *cnm.CreateNetworkRequest `json:"request"`
	Labels  map[string]string         `json:"labels,omitempty"`

	Nodes []cnm.DiscoveryData `json:"nodes,omitempty"` // the nodes that DiscoverNew has sent to the driver

	Allocated bool `json:"allocated,omitempty"` // AllocateNetwork was called
	Created   bool `json:"created,omitempty"`   // CreateNetwork succeeded

	// Again counts how often CreateNetwork was repeated because the driver had forgotten the
	// network. By this number an ADD sees that another ADD has already repeated the call.
	Again int `json:"times,omitempty"`
}

// Whole returns an error if the file contains no request.
func (n *Network) Whole() error {
	if n.Request == nil {
		return errors.New("no request")
	}
	return nil
}

// ensureNetwork creates the network if no ADD has done so, and begins the attachment. It holds
// the network's lock for both steps, so no GC deletes the network in between.
func (w *work) ensureNetwork(ctx context.Context) error {
	unlock, err := w.state.Lock(ctx, remote.Networks, w.r.Network)
	if err != nil {
		return err
	}
	defer unlock()
	have, err := remote.LoadWhole[Network](w.state, w.r, remote.Networks)
	if err != nil {
		return err
	}
	if have != nil {
		if ok, err := w.fits(ctx, have); err != nil || ok {
			return err
		}
	}
	if err := w.r.Step("create network"); err != nil {
		return err
	}
	if err := w.createNetwork(ctx); err != nil {
		return err
	}
	return w.begin()
}

// fits begins the attachment if the existing network has the wanted configuration. If the
// configuration differs, fits deletes the network, unless it has attachments.
func (w *work) fits(ctx context.Context, have *Network) (ok bool, err error) {
	if have.Hash != w.conf.hash() {
		return false, w.replace(ctx, have)
	}
	if !have.Created {
		return false, nil
	}
	old, err := w.outdated(ctx, have)
	switch {
	case err != nil:
		return false, err
	case old:
		return false, w.replace(ctx, have)
	}
	w.net = have
	if err := w.discover(ctx); err != nil {
		return false, remote.Error(err)
	}
	return true, w.begin()
}

// begin records the attachment before the driver is asked for anything.
func (w *work) begin() error {
	w.at = w.state.New(w.r, w.net.Driver)
	w.at.NetworkID = w.net.Request.NetworkID
	w.at.EndpointID = remote.ID(w.at.NetworkID, string(w.r.Owner))
	return w.state.Begin(w.r, name, w.at)
}

// replace deletes a network whose configuration has changed. If the network has attachments,
// replace refuses.
func (w *work) replace(ctx context.Context, have *Network) error {
	n, err := w.state.Members(w.r.Network, name)
	switch {
	case err != nil:
		return err
	case n > 0:
		return spec.Invalid("network %s was made with other options or by another driver, and %d attachments are in it", w.r.Network, n).
			WithDetails("detach them first, or give the network another name")
	}
	return w.deleteNetwork(ctx, have)
}

// createNetwork creates the network at the driver and records this.
func (w *work) createNetwork(ctx context.Context) error {
	w.net = &Network{Driver: w.client.Endpoint(), Hash: w.conf.hash(), Labels: w.conf.Labels}
	var err error
	if w.net.Request, err = w.networkRequest(ctx); err != nil {
		return err
	}
	if err := w.saveNetwork(); err != nil {
		return err
	}
	if err = w.discover(ctx); err == nil {
		err = w.allocate(ctx)
	}
	if err == nil {
		err = w.create(ctx)
	}
	if err != nil {
		return errors.Join(remote.Error(err), w.giveUp(context.WithoutCancel(ctx), err))
	}
	w.net.Created = true
	return w.saveNetwork()
}

func (w *work) saveNetwork() error { return w.state.Save(remote.Networks, w.r.Network, w.net) }

// create sends CreateNetwork. If the driver already has the network, an earlier ADD asked for it
// and ended before the driver's answer came. If that network has no attachments, create deletes it and creates
// it again.
func (w *work) create(ctx context.Context) error {
	err := w.client.CreateNetwork(ctx, w.net.Request)
	if !cnm.SaysExists(err) {
		return err
	}
	n, lerr := w.state.Members(w.r.Network, name)
	if lerr != nil || n > 0 {
		return lerr
	}
	kernel.Warn(w.r, err)
	if derr := w.client.DeleteNetwork(ctx, &cnm.NetworkRequest{NetworkID: w.net.Request.NetworkID}); cnm.Unanswered(derr) {
		return derr
	}
	if err = w.client.CreateNetwork(ctx, w.net.Request); cnm.SaysExists(err) {
		return nil
	}
	return err
}

// giveUp removes the record of a network that the driver refused, and frees what was allocated
// for it. If the driver did not answer, giveUp does nothing: the next ADD asks again.
func (w *work) giveUp(ctx context.Context, failed error) error {
	if cnm.Unanswered(failed) {
		return nil
	}
	errs := []error{w.free(ctx, w.client, w.net), w.state.Remove(remote.Networks, w.r.Network)}
	if w.keeper != nil {
		errs = append(errs, w.keeper.Release(ctx))
	}
	return errors.Join(errs...)
}

// allocate makes the call that a swarm's manager makes for a driver of scope global.
func (w *work) allocate(ctx context.Context) error {
	if !w.conf.EmulateSwarm {
		return nil
	}
	in := &cnm.AllocateNetworkRequest{
		NetworkID: w.net.Request.NetworkID, Options: w.conf.Options,
		IPv4Data: w.net.Request.IPv4Data, IPv6Data: w.net.Request.IPv6Data,
	}
	out, err := w.client.AllocateNetwork(ctx, in)
	if err != nil {
		return err
	}
	w.net.Allocated = true
	if err := w.net.Request.Options.Set(cnm.OptionGeneric, options(out.Options)); err != nil {
		return err
	}
	return w.saveNetwork()
}

func options(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

func (w *work) networkID() string {
	if w.conf.NetworkID != "" {
		return w.conf.NetworkID
	}
	return remote.ID(w.conf.Identity(), w.r.Network)
}

// requested reads what a driver was asked for the network. If the file cannot be read, requested
// derives the same from the configuration. If there is no file, requested returns nil.
func (w *work) requested() *Network {
	have, err := remote.Load[Network](w.state, remote.Networks, w.r.Network)
	if err == nil {
		return have
	}
	kernel.Warn(w.r, err)
	at, err := w.conf.Endpoint()
	if err != nil {
		kernel.Warn(w.r, err)
		return nil
	}
	return &Network{Driver: at, Request: &cnm.CreateNetworkRequest{NetworkID: w.networkID()}}
}

// networkRequest returns the request of CreateNetwork.
func (w *work) networkRequest(ctx context.Context) (*cnm.CreateNetworkRequest, error) {
	in := &cnm.CreateNetworkRequest{NetworkID: w.networkID(), Options: cnm.Options{}}
	if err := in.Options.Set(cnm.OptionGeneric, options(w.conf.Options)); err != nil {
		return nil, err
	}
	if w.conf.Internal {
		if err := in.Options.Set(cnm.OptionInternal, true); err != nil {
			return nil, err
		}
	}
	v4, v6, err := w.data(ctx, in.Options)
	if err != nil {
		return nil, err
	}
	in.IPv4Data, in.IPv6Data = append([]cnm.IPAMData{}, v4...), append([]cnm.IPAMData{}, v6...)
	return in, errors.Join(
		in.Options.Set(cnm.OptionEnableIPv4, len(v4) > 0),
		in.Options.Set(cnm.OptionEnableIPv6, len(v6) > 0),
	)
}

// data returns the pools of the network. They come from the IPAM driver, or from the addresses
// that a CNI IPAM plugin gave. Without IPAM, they are the pools that Docker uses for such a
// network.
func (w *work) data(ctx context.Context, opts cnm.Options) (v4, v6 []cnm.IPAMData, err error) {
	skip, err := w.skipGateways(ctx, opts)
	if err != nil {
		return nil, nil, err
	}
	switch {
	case w.keeper != nil:
		pools, err := w.keeper.Ensure(ctx, skip)
		if err != nil {
			return nil, nil, err
		}
		v4, v6 = pools.Data()
	case w.ipam != nil:
		v4, v6 = derive(w.ipam.IPs, true, skip.SkipIPv4), derive(w.ipam.IPs, false, skip.SkipIPv6)
	default:
		v4 = null(true)
		if w.conf.IPv6 {
			v6 = null(false)
		}
	}
	return v4, v6, nil
}

func null(v4 bool) []cnm.IPAMData {
	return []cnm.IPAMData{{AddressSpace: "null", Pool: spec.DefaultDst(v4)}}
}

// derive makes a pool from the first address of a family. If the driver needs a gateway, the pool
// has one. The address space is Docker's.
func derive(ips []spec.IPConfig, want4, noGateway bool) []cnm.IPAMData {
	for _, ip := range ips {
		if ip.Address.Addr().Is4() != want4 {
			continue
		}
		d := cnm.IPAMData{AddressSpace: "LocalDefault", Pool: ip.Address.Masked()}
		if ip.Gateway.IsValid() && !noGateway {
			d.Gateway = netip.PrefixFrom(ip.Gateway, ip.Address.Bits())
		}
		return []cnm.IPAMData{d}
	}
	return nil
}

// skipGateways asks the driver which gateways it does not need. It asks only a driver with that
// capability.
func (w *work) skipGateways(ctx context.Context, opts cnm.Options) (skip cnm.GwAllocCheckResponse, err error) {
	if !w.caps.GwAllocChecker {
		return skip, nil
	}
	out, err := w.client.GwAllocCheck(ctx, &cnm.GwAllocCheckRequest{Options: opts})
	if err != nil {
		return skip, remote.Error(err)
	}
	return *out, nil
}

// deleteNetwork deletes a network at the driver and removes its record. An error that the driver
// answers is only a warning, as in Docker. If delIgnoreUnreachable is set, a missing answer is
// only a warning too.
func (w *work) deleteNetwork(ctx context.Context, have *Network) error {
	c, err := w.conf.Recorded(w.r, have.Driver)
	if err != nil {
		return err
	}
	err = remote.Answered(w.r, c.DeleteNetwork(ctx, &cnm.NetworkRequest{NetworkID: have.Request.NetworkID}))
	if err == nil {
		err = w.free(ctx, c, have)
	}
	if err != nil {
		if !w.conf.DelIgnoreUnreachable {
			return remote.Error(err)
		}
		kernel.Warn(w.r, err)
	}
	return w.state.Remove(remote.Networks, w.r.Network)
}

func (w *work) free(ctx context.Context, c *cnm.Client, have *Network) error {
	if !have.Allocated {
		return nil
	}
	return remote.Answered(w.r, c.FreeNetwork(ctx, &cnm.NetworkRequest{NetworkID: have.Request.NetworkID}))
}

// createAgain repeats CreateNetwork if the driver has forgotten the network. Many drivers keep
// their networks only in memory. If the driver still knows the network, ok is false.
func (w *work) createAgain(ctx context.Context) (ok bool) {
	unlock, err := w.state.Lock(ctx, remote.Networks, w.r.Network)
	if err != nil {
		kernel.Warn(w.r, err)
		return false
	}
	defer unlock()
	if now, err := remote.Load[Network](w.state, remote.Networks, w.r.Network); err == nil && now != nil && now.Again > w.net.Again {
		return true // another ADD has repeated the call meanwhile
	}
	w.net.Nodes = nil // the driver has forgotten the nodes too
	if err := w.discover(ctx); err != nil {
		kernel.Warn(w.r, err)
	}
	if err := w.client.CreateNetwork(ctx, w.net.Request); err != nil {
		kernel.Warn(w.r, err)
		return false
	}
	w.net.Again++
	if err := w.saveNetwork(); err != nil {
		kernel.Warn(w.r, err)
	}
	return true
}

// newKeeper opens the pools, if IPAM is a Docker driver too.
func (w *work) newKeeper() (err error) {
	if w.conf.pools != nil {
		w.keeper, err = cnmipam.NewKeeper(w.r, w.conf.pools)
	}
	return err
}
