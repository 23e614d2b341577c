// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cnm"
	"github.com/patchbay-net/patchbay/cnm/docker/state"
	"github.com/patchbay-net/patchbay/internal/vouched"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

// leaseID is the container id of an IPAM plugin's calls: Docker tells no more
// than the MAC address of the interface to be.
func leaseID(network, mac string) string {
	sum := sha256.Sum256([]byte(network + "\x00" + strings.ToLower(mac)))
	return "docker-" + hex.EncodeToString(sum[:16])
}

// RequestAddress implements cnm.IPAMDriver. The first request for a MAC address
// asks the IPAM plugin, which gives all families; the second is answered with
// what it gave.
func (d *Driver) RequestAddress(ctx context.Context, in *cnm.RequestAddressRequest) (*cnm.RequestAddressResponse, error) {
	ctx, cancel := d.limit(ctx)
	defer cancel()
	p, err := d.store.Pool(in.PoolID)
	if err != nil {
		return nil, err
	}
	mac := in.Options[cnm.OptionMAC]
	switch {
	case in.Options[cnm.OptionAddressType] == cnm.OptionGateway:
		return reserved(p, in.Address)
	case mac == "":
		return nil, errors.New("--aux-address: leave the address out of the ranges of the CNI configuration")
	}
	id := leaseID(p.Network, mac)
	if err := d.freeAddress(ctx, p.Network, id, in.Address); err != nil {
		return nil, err
	}
	release, err := d.locks.take(ctx, id)
	if err != nil {
		return nil, err
	}
	defer release()
	l, err := d.store.Lease(id)
	if errors.Is(err, state.ErrUnknown) {
		l, err = &state.Lease{ID: id, Network: p.Network, Config: p.Config}, nil
	}
	if err != nil {
		return nil, err
	}
	return d.give(ctx, p, l, in.Address)
}

// give answers out of a lease, which is asked for, or asked for again when it
// has not the address that is wanted. One from before the node booted counts for
// nothing: the IPAM plugin may have given its addresses to another since.
func (d *Driver) give(ctx context.Context, p *state.Pool, l *state.Lease, wanted netip.Addr) (*cnm.RequestAddressResponse, error) {
	if used, err := d.used(l); err != nil {
		return nil, err
	} else if !used { // whose it will be is anybody's guess, also with the MAC address of one before
		l.Endpoint, l.Unbound = "", false
	}
	if l.Boot != d.boot {
		l.Wanted, l.Result, l.Given = nil, nil, nil
	}
	got := ofFamily(l.Result, p.V6, wanted)
	if got == nil {
		if wanted.IsValid() {
			l.Wanted = append(l.Wanted, wanted)
		}
		if err := d.ask(ctx, l); err != nil {
			return nil, err
		}
		if got = ofFamily(l.Result, p.V6, wanted); got == nil {
			return nil, errors.Join(fmt.Errorf("the IPAM plugin gave no such address, but %s", asText(l.Result)), d.refused(ctx, l))
		}
	}
	if addr := got.Address.Addr(); !slices.Contains(l.Given, addr) {
		l.Given = append(l.Given, addr)
	}
	if err := d.saveLease(l); err != nil {
		return nil, err
	}
	return &cnm.RequestAddressResponse{Address: told(l, got.Address)}, nil
}

// refused gives back what a plugin gave that is not what Docker asked for: Docker
// does not know of it. What it got before, it gives back itself.
func (d *Driver) refused(ctx context.Context, l *state.Lease) error {
	if len(l.Given) > 0 {
		return nil
	}
	return d.dropLease(ctx, l)
}

// told is an address as ptp needs it, which has no subnet on its link.
func told(l *state.Lease, a netip.Prefix) netip.Prefix {
	if list, err := chain.ParseList(l.Config); err == nil && first(list).Type == "ptp" {
		return netip.PrefixFrom(a.Addr(), a.Addr().BitLen())
	}
	return a
}

func ofFamily(r *spec.Result, v6 bool, wanted netip.Addr) *spec.IPConfig {
	if r == nil {
		return nil
	}
	for i, ip := range r.IPs {
		if a := ip.Address.Addr(); a.Is6() == v6 && (!wanted.IsValid() || a == wanted) {
			return &r.IPs[i]
		}
	}
	return nil
}

func asText(r *spec.Result) string {
	var out []string
	for _, ip := range r.IPs {
		out = append(out, ip.Address.String())
	}
	return strings.Join(out, ", ")
}

func (d *Driver) saveLease(l *state.Lease) error {
	l.Since = time.Now()
	d.opts.step()
	err := d.store.SaveLease(l)
	d.opts.step()
	return err
}

// ask calls the IPAM plugin, after giving back what it gave before.
func (d *Driver) ask(ctx context.Context, l *state.Lease) error {
	fresh := l.Since.IsZero() // of any other one the plugin may have been asked, by whoever was killed then
	l.Result, l.Boot = nil, d.boot
	if err := d.saveLease(l); err != nil {
		return err
	}
	list, err := leaseList(l)
	if err != nil {
		return err
	}
	a, err := d.leaseAttachment(ctx, l)
	if err != nil {
		return err
	}
	if !fresh {
		if err := d.run[lease].Del(ctx, list, a); err != nil {
			return err
		}
	}
	if l.Result, err = d.run[lease].Add(ctx, list, a); err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTime)
	defer cancel()
	if len(l.Given) > 0 { // Docker gives back what it got
		return errors.Join(err, d.run[lease].Del(ctx, list, a))
	}
	return errors.Join(err, d.dropLease(ctx, l))
}

// leaseList is the first plugin's configuration, for its IPAM plugin: they are
// called with the same.
func leaseList(l *state.Lease) (*chain.List, error) {
	list, err := chain.ParseList(l.Config)
	if err != nil {
		return nil, err
	}
	section, err := sectionOf(list)
	if err != nil {
		return nil, err
	}
	p := *first(list)
	p.Type, p.Capabilities = section.Type, map[string]bool{"ips": true}
	list.Plugins = []chain.Plugin{p}
	return list, nil
}

// leaseAttachment has a namespace that stands for the interface's, as there is
// none yet and a plugin refuses its caller's own.
func (d *Driver) leaseAttachment(ctx context.Context, l *state.Lease) (chain.Attachment, error) {
	path := d.standIn()
	a := chain.Attachment{ContainerID: l.ID, NetNS: path, IfName: holdName, Args: [][2]string{{"IgnoreUnknown", "1"}}, Capabilities: map[string]any{}}
	var ips []string
	for _, addr := range slices.Concat(l.Wanted, l.Given) { // what Docker was told must come again
		if text := addr.String(); !slices.Contains(ips, text) {
			ips = append(ips, text)
		}
	}
	if len(ips) > 0 {
		a.Capabilities["ips"] = ips
	}
	release, err := d.locks.take(ctx, path)
	if err != nil {
		return a, err
	}
	defer release()
	if _, there, err := live(path); there || err != nil {
		return a, err
	}
	return a, d.makeHold(path)
}

// ReleaseAddress implements cnm.IPAMDriver. The lease goes with its last address.
func (d *Driver) ReleaseAddress(ctx context.Context, in *cnm.ReleaseAddressRequest) error {
	ctx, cancel := d.limit(ctx)
	defer cancel()
	p, err := d.store.Pool(in.PoolID)
	if errors.Is(err, state.ErrUnknown) {
		return nil
	}
	if err != nil {
		return err
	}
	all, err := d.store.Leases()
	for _, l := range all {
		if l.Network == p.Network && slices.Contains(l.Given, in.Address) {
			return d.giveBack(ctx, l.ID, in.Address)
		}
	}
	return err
}

func (d *Driver) giveBack(ctx context.Context, id string, addr netip.Addr) error {
	return d.knownLease(ctx, id, func(l *state.Lease) error {
		l.Given = slices.DeleteFunc(l.Given, func(a netip.Addr) bool { return a == addr })
		if err := d.saveLease(l); err != nil || len(l.Given) > 0 {
			return err
		}
		if used, err := d.used(l); used { // it could not be removed: nobody else may have its address yet
			return err
		}
		return d.dropLease(ctx, l)
	})
}

// knownLease does something with a lease, within its lock. One that is gone is no
// error.
func (d *Driver) knownLease(ctx context.Context, id string, do func(*state.Lease) error) error {
	release, err := d.locks.take(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	l, err := d.store.Lease(id)
	if errors.Is(err, state.ErrUnknown) {
		return nil
	}
	if err != nil {
		return err
	}
	return do(l)
}

// dropLease gives a lease back. One that cannot be given back now stays written
// down, for Sweep.
func (d *Driver) dropLease(ctx context.Context, l *state.Lease) error {
	list, err := leaseList(l)
	if err != nil {
		return err
	}
	a, err := d.leaseAttachment(ctx, l)
	if err != nil {
		return err
	}
	if err := d.run[lease].Del(ctx, list, a); err != nil {
		return err
	}
	return errors.Join(d.store.DropLease(l.ID), d.dropStandIn(ctx))
}

// standIn is the path of the namespace that IPAM plugins are called with.
func (d *Driver) standIn() string {
	return filepath.Join(vouched.Holds(d.opts.Paths.Run), "ipam")
}

// dropStandIn removes it with the last lease. Who asks for one has written that
// down before.
func (d *Driver) dropStandIn(ctx context.Context) error {
	release, err := d.locks.take(ctx, d.standIn())
	if err != nil {
		return err
	}
	defer release()
	if all, err := d.store.Leases(); err != nil || len(all) > 0 {
		return err
	}
	return netns.Delete(d.standIn())
}
