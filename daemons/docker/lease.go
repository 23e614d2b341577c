// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/docker/state"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

// leaseID returns the container id for calls of an IPAM plugin. leaseID makes it from the MAC
// address of the future interface, because Docker's request has nothing else that names the
// container.
func leaseID(network, mac string) string {
	sum := sha256.Sum256([]byte(network + "\x00" + strings.ToLower(mac)))
	return "docker-" + hex.EncodeToString(sum[:16])
}

// RequestAddress implements cnm.IPAMDriver. At the first request for a MAC address, it calls the
// IPAM plugin, which gives addresses of all families. The request for the other family then gets
// one of these addresses.
func (d *Driver) RequestAddress(ctx context.Context, in *cnm.RequestAddressRequest) (*cnm.RequestAddressResponse, error) {
	ctx, cancel := d.limit(ctx)
	defer cancel()
	p, err := d.state.Pools.Get(in.PoolID)
	if err != nil {
		return nil, err
	}
	mac := in.Options[cnm.OptionMAC]
	switch {
	case in.Options[cnm.OptionAddressType] == cnm.OptionGateway:
		return reserved(p, in.Address)
	case mac == "":
		return nil, errors.New("--aux-address cannot be set: leave the address out of the ranges of the CNI configuration instead")
	}
	id := leaseID(p.Network, mac)
	if err := d.freeAddress(ctx, p.Network, id, in.Address); err != nil {
		return nil, err
	}
	release, err := d.locks.lock(ctx, id)
	if err != nil {
		return nil, err
	}
	defer release()
	l, err := d.state.Leases.Get(id)
	if errors.Is(err, state.ErrUnknown) {
		l, err = &state.Allocation{ID: id, Network: p.Network, Config: p.Config}, nil
	}
	if err != nil {
		return nil, err
	}
	return d.give(ctx, p, l, in.Address)
}

// give answers a request from a lease. It calls the IPAM plugin in three cases: the lease is new,
// the lease lacks the wanted address, or the node has booted since. After a boot, the plugin may
// have given the addresses to another container.
func (d *Driver) give(ctx context.Context, p *state.Pool, l *state.Allocation, wanted netip.Addr) (*cnm.RequestAddressResponse, error) {
	if used, err := d.used(l); err != nil {
		return nil, err
	} else if !used { // no endpoint uses the lease yet, even if an earlier one had the MAC address
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
			err := fmt.Errorf("the IPAM plugin gave no such address, but %s", asText(l.Result))
			if len(l.Given) == 0 { // Docker itself releases the addresses that it got earlier
				err = errors.Join(err, d.dropLease(ctx, l))
			}
			return nil, err
		}
	}
	if addr := got.Address.Addr(); !slices.Contains(l.Given, addr) {
		l.Given = append(l.Given, addr)
	}
	if err := d.saveLease(l); err != nil {
		return nil, err
	}
	return &cnm.RequestAddressResponse{Address: forDocker(l, got.Address)}, nil
}

// forDocker returns an address in the form that Docker needs. With ptp the link has no subnet, so
// the address's prefix has full length.
func forDocker(l *state.Allocation, a netip.Prefix) netip.Prefix {
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

func (d *Driver) saveLease(l *state.Allocation) error {
	l.Since = time.Now()
	d.opts.step()
	err := d.state.Leases.Save(l)
	d.opts.step()
	return err
}

// ask calls the IPAM plugin. If the plugin may have given addresses before, ask releases those
// first.
func (d *Driver) ask(ctx context.Context, l *state.Allocation) error {
	fresh := l.Since.IsZero() // if the lease is not new, a killed call may have asked the plugin
	l.Result, l.Boot = nil, d.boot
	if err := d.saveLease(l); err != nil {
		return err
	}
	list, a, err := d.leaseCall(ctx, l)
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
	if len(l.Given) > 0 { // Docker releases the addresses that it got before
		return errors.Join(err, d.run[lease].Del(ctx, list, a))
	}
	return errors.Join(err, d.dropLease(ctx, l))
}

// leaseList returns a list with only the IPAM plugin. The IPAM plugin gets the configuration of
// the first plugin, because the first plugin would pass that on.
func leaseList(l *state.Allocation) (*chain.List, error) {
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

// leaseCall returns the list and the attachment for a call of the IPAM plugin. The interface's
// namespace does not exist yet, so another namespace stands in for it. The host's namespace
// cannot, because a plugin refuses the namespace in which it runs.
func (d *Driver) leaseCall(ctx context.Context, l *state.Allocation) (list *chain.List, a chain.Attachment, err error) {
	if list, err = leaseList(l); err != nil {
		return nil, a, err
	}
	path := d.standIn()
	a = chain.Attachment{ContainerID: l.ID, NetNS: path, IfName: holdName, Args: [][2]string{{"IgnoreUnknown", "1"}}, Capabilities: map[string]any{}}
	var ips []string
	for _, addr := range slices.Concat(l.Wanted, l.Given) { // the plugin must give again the addresses that Docker already has
		if text := addr.String(); !slices.Contains(ips, text) {
			ips = append(ips, text)
		}
	}
	if len(ips) > 0 {
		a.Capabilities["ips"] = ips
	}
	release, err := d.locks.lock(ctx, path)
	if err != nil {
		return nil, a, err
	}
	defer release()
	if _, exists, err := live(path); exists || err != nil {
		return list, a, err
	}
	return list, a, d.makeHold(path)
}

// ReleaseAddress implements cnm.IPAMDriver. It drops the lease with its last address.
func (d *Driver) ReleaseAddress(ctx context.Context, in *cnm.ReleaseAddressRequest) error {
	ctx, cancel := d.limit(ctx)
	defer cancel()
	p, err := d.state.Pools.Get(in.PoolID)
	if errors.Is(err, state.ErrUnknown) {
		return nil
	}
	if err != nil {
		return err
	}
	all, err := d.state.Leases.List()
	for _, l := range all {
		if l.Network == p.Network && slices.Contains(l.Given, in.Address) {
			return d.giveBack(ctx, l.ID, in.Address)
		}
	}
	return err
}

func (d *Driver) giveBack(ctx context.Context, id string, addr netip.Addr) error {
	return d.leaseIfExists(ctx, id, func(l *state.Allocation) error {
		l.Given = slices.DeleteFunc(l.Given, func(a netip.Addr) bool { return a == addr })
		if err := d.saveLease(l); err != nil || len(l.Given) > 0 {
			return err
		}
		if used, err := d.used(l); used { // the endpoint could not be removed, so no other may get its address
			return err
		}
		return d.dropLease(ctx, l)
	})
}

// dropLease releases a lease. If that fails, the lease stays in the state for the collector.
func (d *Driver) dropLease(ctx context.Context, l *state.Allocation) error {
	list, a, err := d.leaseCall(ctx, l)
	if err != nil {
		return err
	}
	if err := d.run[lease].Del(ctx, list, a); err != nil {
		return err
	}
	return errors.Join(d.state.Leases.Drop(l.ID), d.dropStandIn(ctx))
}

// standIn returns the path of the namespace that stands in for the interface's in calls of IPAM
// plugins.
func (d *Driver) standIn() string {
	return filepath.Join(d.opts.Paths.Holds(), "ipam")
}

// dropStandIn removes this namespace if no lease is left. A call that needs the namespace has
// written its lease before, so dropStandIn sees that lease.
func (d *Driver) dropStandIn(ctx context.Context) error {
	release, err := d.locks.lock(ctx, d.standIn())
	if err != nil {
		return err
	}
	defer release()
	if all, err := d.state.Leases.List(); err != nil || len(all) > 0 {
		return err
	}
	return netns.Delete(d.standIn())
}

// freeAddress takes the MAC address of a new lease from another endpoint. It takes the wanted
// address from an endpoint or a lease that is dead.
func (d *Driver) freeAddress(ctx context.Context, network, id string, wanted netip.Addr) error {
	l, err := d.state.Leases.Get(id)
	switch {
	case errors.Is(err, state.ErrUnknown):
	case err != nil:
		return err
	case l.Endpoint != "" && !d.evict(ctx, l.Endpoint, true):
		return errMACInUse(l)
	}
	if !wanted.IsValid() {
		return nil
	}
	all, err := d.state.Leases.List()
	for _, l := range all {
		if l.ID != id && l.Network == network && slices.Contains(l.Given, wanted) {
			d.evictLease(ctx, l)
		}
	}
	return err
}

// evictLease removes a dead endpoint with its lease, or a dead lease that no endpoint uses, such as one from before the
// node booted.
func (d *Driver) evictLease(ctx context.Context, l *state.Allocation) {
	if l.Endpoint != "" {
		d.evict(ctx, l.Endpoint, false)
	}
	l, err := d.state.Leases.Get(l.ID)
	if errors.Is(err, state.ErrUnknown) {
		return
	}
	if err == nil {
		c := &collector{d: d, grace: math.MaxInt64}
		err = c.lease(ctx, l)
	}
	if err != nil {
		d.opts.Log("evict address of network %s: %v", l.Network, err)
	}
}

func errMACInUse(l *state.Allocation) error {
	return fmt.Errorf("the MAC address is that of endpoint %.12s in network %s: choose another --mac-address", l.Endpoint, l.Network)
}

// static is an ipam section for the plugin static, with the addresses of a lease.
type static struct {
	Type      string          `json:"type"`
	Addresses []staticAddress `json:"addresses"`
	Routes    []spec.Route    `json:"routes,omitempty"`
	DNS       spec.DNS        `json:"dns,omitzero"`
}

type staticAddress struct {
	Address netip.Prefix `json:"address"`
	Gateway netip.Addr   `json:"gateway,omitzero"`
}

// leased binds the endpoint's lease to the endpoint, and returns an ipam section with the lease's
// addresses. If the address does not come from our IPAM driver, leased returns nil.
func (d *Driver) leased(ctx context.Context, n *network, e *state.Endpoint) (any, error) {
	l, err := d.bind(ctx, leaseID(n.list.Name, e.Wanted.MacAddress), e.ID)
	if l == nil || err != nil || l.Result == nil {
		return nil, err
	}
	return staticOf(l), nil
}

func staticOf(l *state.Allocation) static {
	out := static{Type: "static", Routes: l.Result.Routes, DNS: l.Result.DNS}
	for _, ip := range l.Result.IPs {
		out.Addresses = append(out.Addresses, staticAddress{ip.Address, ip.Gateway})
	}
	return out
}

// leaseEnd says what to do with a lease when its endpoint is removed.
type leaseEnd int

const (
	unbind  leaseEnd = iota // keep the lease, because Docker releases the address or has done so
	abandon                 // release the lease, because Docker will not
)

// endLease unbinds a lease from an endpoint, or releases the lease. If another endpoint has the
// lease, endLease does nothing: with --mac-address, Docker may have created the next endpoint
// before it removed this one.
func (d *Driver) endLease(ctx context.Context, id, endpointID string, end leaseEnd) error {
	return d.leaseIfExists(ctx, id, func(l *state.Allocation) error {
		switch {
		case l.Endpoint != endpointID:
			return nil
		case end == abandon || len(l.Given) == 0:
			return d.dropLease(ctx, l)
		}
		l.Endpoint, l.Unbound = "", true
		return d.saveLease(l)
	})
}

// bind binds a lease to an endpoint. It returns nil if there is no lease.
func (d *Driver) bind(ctx context.Context, id, endpointID string) (bound *state.Allocation, err error) {
	err = d.leaseIfExists(ctx, id, func(l *state.Allocation) error {
		if bound = l; l.Endpoint == endpointID {
			return nil
		}
		if used, err := d.used(l); used { // two endpoints asked for one MAC address at the same time
			return errors.Join(err, errMACInUse(l))
		}
		l.Endpoint, l.Unbound = endpointID, false
		return d.saveLease(l)
	})
	return bound, err
}
