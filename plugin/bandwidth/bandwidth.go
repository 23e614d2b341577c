// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package bandwidth is the plugin `bandwidth`. The plugin limits a container's traffic with
// token buckets. Traffic that the container receives is limited on the host's end of its veth.
// Traffic that the container sends is redirected to an ifb device and limited there.
//
// All limits are in bits. Some runtimes send a huge burst when none is set. The plugin replaces
// that burst by a tenth of a second of the rate (see defaultBurst). Needs Linux >= 3.4.
package bandwidth

import (
	"context"
	"errors"
	"fmt"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

const name = "bandwidth"

// Plugin has the name, the versions and the functions of this plugin.
var Plugin = plugin.Plugin{
	Name:         name,
	Kind:         plugin.Chained,
	About:        "limits the bandwidth of a container's veth",
	MinVersion:   "0.3.0",
	Capabilities: []string{"bandwidth"},
	Conf:         func() any { return new(Conf) },
	NoPrev:       plugin.NoPrev{Check: "must be called as a chained plugin"},

	Validate: validate,
	Warnings: doubts,

	Add:   add,
	Del:   del,
	Check: check,
	GC:    gc,
}

func add(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
	limits := plugin.ConfOf[Conf](r).shapes
	if limits.none() {
		return r.Prev(), nil
	}
	if r.Prev() == nil {
		return nil, spec.Invalid("must be called as chained plugin")
	}
	k := kernel.Of(r)
	env, err := k.Env(r)
	if err != nil {
		return nil, err
	}
	host, err := hostLink(env, r)
	if err != nil {
		return nil, err
	}
	var device ifb
	if limits.egress.rate > 0 {
		if device, err = newDevice(r, k, env, host); err != nil {
			return nil, err
		}
	}
	if err := k.Apply(ctx, r, env, compile(limits, host, device)); err != nil {
		return nil, err
	}
	return extend(r, env, device.name)
}

// newDevice chooses the name of the ifb device and records the name.
func newDevice(r *plugin.Request, k *kernel.Kernel, env *netstate.Env, host string) (d ifb, err error) {
	d.like, d.owner = host, r.Owner
	dead := false
	if before, _ := k.Records.Read(r.Network, r.Owner, name); before != nil { // an unreadable record proves nothing
		dead = k.Over(before)
	}
	if d.name, d.stale, err = freeName(env.Host, candidates(r.Network, r.ContainerID, r.Owner), r.Owner, dead); err != nil {
		return ifb{}, err
	}
	return d, k.Record(r, &record.Record{Links: []string{d.name}})
}

// compile computes the desired state. compile changes nothing.
func compile(limits shapes, host string, device ifb) netstate.State {
	var s netstate.State
	if limits.ingress.rate > 0 {
		s = append(s, tbf{host, limits.ingress})
	}
	if limits.egress.rate > 0 {
		s = append(s, device, redirect{host, device.name}, tbf{device.name, limits.egress})
	}
	return s
}

// extend adds the ifb to the result, as the reference does.
func extend(r *plugin.Request, env *netstate.Env, device string) (*spec.Result, error) {
	result := r.Prev()
	if device == "" {
		return result, nil
	}
	added := spec.Interface{Name: device}
	if r.Session.Dry == nil {
		link, err := env.Link(netstate.Host, device)
		if err != nil {
			return nil, err
		}
		added.Mac = link.Attrs().HardwareAddr.String()
	}
	result.Interfaces = append(result.Interfaces, added)
	return result, nil
}

// hostLink returns the host's end of the container's veth. The host's end must be the peer of
// the container's interface and be in the previous result.
func hostLink(env *netstate.Env, r *plugin.Request) (string, error) {
	if len(r.Prev().Interfaces) == 0 {
		return "", spec.Invalid("no interfaces provided")
	}
	inside, err := env.Link(netstate.Sandbox, r.IfName)
	if err != nil && r.Session.Dry != nil {
		return firstHostInterface(r.Prev()), nil // a dry run: nothing exists yet
	}
	if err != nil {
		return "", fmt.Errorf("container interface %s has no veth peer: %w", r.IfName, err)
	}
	if inside.Type() != "veth" || inside.Attrs().ParentIndex <= 0 {
		return "", spec.Invalid("container interface %s has no veth peer: it is a %s", r.IfName, inside.Type())
	}
	peer, err := env.Host.LinkAt(inside.Attrs().ParentIndex)
	if err != nil {
		return "", fmt.Errorf("veth peer with index %d is not in host ns: %w", inside.Attrs().ParentIndex, err)
	}
	for _, i := range r.Prev().Interfaces {
		if i.Sandbox == "" && i.Name == peer.Attrs().Name {
			env.Remember(netstate.Host, peer)
			return i.Name, nil
		}
	}
	return "", spec.Invalid("no veth peer of container interface found in host ns")
}

func firstHostInterface(prev *spec.Result) string {
	name := ""
	for _, i := range prev.Interfaces {
		if i.Sandbox == "" {
			name = i.Name // the host's veth comes after the bridge
		}
	}
	return name
}

// del removes the ifb. The kernel deletes the queues on the veth with the veth. del needs no
// configuration, namespace or previous result.
func del(_ context.Context, r *plugin.Request) error {
	k := kernel.Of(r)
	lost := func() *record.Record { return &record.Record{} }
	return k.Detach(r, lost, func(rec *record.Record) error {
		rec.Links = append(rec.Links, candidates(r.Network, r.ContainerID, r.Owner)...)
		return remove(k, rec)
	})
}

func remove(k *kernel.Kernel, rec *record.Record) error {
	host, err := k.Host()
	if err != nil {
		return err
	}
	links, err := owned(host, rec.Links, rec.Owner)
	errs := []error{err}
	for _, link := range links {
		errs = append(errs, deleteLink(host, link))
	}
	return errors.Join(errs...)
}

func check(ctx context.Context, r *plugin.Request) error {
	limits := plugin.ConfOf[Conf](r).shapes
	if limits.none() {
		return nil
	}
	env, err := kernel.Of(r).Env(r)
	if err != nil {
		return err
	}
	host, err := hostLink(env, r)
	if err != nil {
		return err
	}
	var device ifb
	if limits.egress.rate > 0 {
		names, err := owned(env.Host, candidates(r.Network, r.ContainerID, r.Owner), r.Owner)
		if err != nil {
			return err
		}
		if len(names) == 0 {
			return fmt.Errorf("get ifb device: attachment %s/%s has none", r.ContainerID, r.IfName)
		}
		device = ifb{name: names[0]}
	}
	err = kernel.Check(ctx, env, compile(limits, host, device))
	if asSent, serr := plugin.ConfOf[Conf](r).limits(false); err != nil && serr == nil && asSent != limits {
		// If the reference made the attachment, the kernel has the runtime's burst unchanged. CHECK
		// accepts that.
		if kernel.Check(ctx, env, compile(asSent, host, device)) == nil {
			return nil
		}
	}
	return err
}

func gc(ctx context.Context, r *plugin.Request) error {
	k := kernel.Of(r)
	return k.Sweep(ctx, r, func(rec *record.Record) error { return remove(k, rec) })
}
