// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package portmap is the plugin `portmap`. The plugin publishes ports of a container on the
// host. Each mapping is one element of a map in the table `inet patchbay`; the key is the
// protocol and the host port. So a packet costs one lookup, and an ADD one transaction, however
// many ports are published.
//
// Decisions (docs/plugins/portmap.md explains them to operators):
//
//   - A host port belongs to the attachment that has it. If a second attachment
//     asks for it, the error names the first one. If the first one is dead
//     because its record or namespace is gone, the second one gets the port.
//     (The reference appends a rule that never matches.)
//   - A container in two networks publishes its ports for both, as with podman.
//     The attachment that came last has them; when it ends, the other one gets
//     them.
//   - A mapping with a host address comes before one for all addresses, and a
//     network with conditions before one without.
//   - kube-proxy's and Docker's rules (priority dstnat) run before ours
//     (dstnat + 5), so their published ports win.
//   - The container sees the client's address, unless the answer would be lost
//     because it would not pass the host. Only such traffic is masqueraded:
//     traffic from the container's own subnet, including the container itself,
//     and from 127.0.0.0/8.
//   - Two attachments of one container are independent, because elements have
//     the owner of (network, container, interface).
//   - DEL needs only the record: no namespace, configuration, prevResult or
//     runtimeConfig.
//
// Needs Linux >= 5.10; SCTP needs the kernel's SCTP connection tracking.
package portmap

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

const name = "portmap"

// Plugin has the name, the versions and the functions of this plugin.
var Plugin = plugin.Plugin{
	Name:         name,
	Kind:         plugin.Chained,
	About:        "publishes a container's ports on the host",
	Capabilities: []string{"portMappings"},
	Conf:         func() any { return new(Conf) },
	NoPrev:       plugin.NoPrev{Add: "must be called as chained plugin", Check: "Required prevResult missing"},
	Warnings:     doubts,

	Add:    add,
	Del:    del,
	Check:  check,
	GC:     gc,
	Status: status,
}

// add returns the previous result unchanged.
func add(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
	k := kernel.Of(r)
	if len(plugin.ConfOf[Conf](r).mappings) == 0 {
		return r.Prev(), addNothing(r, k)
	}
	env, err := k.HostEnv(r)
	if err != nil {
		return nil, err
	}
	p := newPlan(r)
	if err := cmp.Or(p.checkHosts(env), p.findRoute(r, env)); err != nil {
		return nil, err
	}
	for _, m := range p.unserved() {
		kernel.Warn(r, fmt.Errorf("port mapping %s has no effect: the container has no address of that family", m))
	}
	rec := p.record()
	if err := k.Record(r, rec); err != nil {
		return nil, err
	}
	if err := k.Apply(ctx, r, env, p.compile(k, rec)); err != nil {
		return nil, err
	}
	flushAfterCommit(r, k, p, rec)
	return r.Prev(), nil
}

// addNothing performs an ADD without ports. addNothing still removes the ports of an earlier
// ADD.
func addNothing(r *plugin.Request, k *kernel.Kernel) error {
	if rec, _ := k.Records.Read(r.Network, r.Owner, name); rec == nil {
		return nil
	}
	rec := &record.Record{}
	if err := k.Record(r, rec); err != nil {
		return err
	}
	flushAfterCommit(r, k, &plan{}, rec)
	return nil
}

// del removes the elements of the record. If there is no record, it removes the elements of
// the configuration and what the reference plugin left for the attachment.
func del(ctx context.Context, r *plugin.Request) error {
	k := kernel.Of(r)
	lost := func() *record.Record {
		k.NFT.Queue(leftovers(r))
		return withoutRecord(r, k)
	}
	return k.Detach(r, lost, func(rec *record.Record) error { return remove(ctx, r, k, rec) })
}

// check compares the kernel with the state that ADD made.
func check(ctx context.Context, r *plugin.Request) error {
	if len(plugin.ConfOf[Conf](r).mappings) == 0 {
		return nil
	}
	k := kernel.Of(r)
	env, err := k.HostEnv(r)
	if err != nil {
		return err
	}
	p := newPlan(r)
	if err := p.findRoute(r, env); err != nil {
		return err
	}
	rec, err := k.Records.Read(r.Network, r.Owner, name)
	if err != nil || rec == nil {
		return k.AllowReference(r, p.reference(r), kernel.Check(ctx, env, p.compile(k, nil)))
	}
	led := p.asRecorded(k, env, rec)
	return k.AllowReference(r, p.reference(r), kernel.Check(ctx, env, append(p.compile(k, nil), led...)))
}

func isOfPorts(e nft.Element) bool { return !e.OfInterface() && !e.OfPolicy() }

// gc removes what belongs to attachments that are no longer valid.
func gc(ctx context.Context, r *plugin.Request) error {
	k := kernel.Of(r)
	err := k.Sweep(ctx, r, func(rec *record.Record) error { return remove(ctx, r, k, rec) })
	if _, ok := r.Valid(); !ok {
		return err
	}
	errs := []error{err, k.SweepLost(r, isOfPorts, func(lost *record.Record) error {
		lost.Shared = factsOf(r, k, lost.Owner)
		return remove(ctx, r, k, lost)
	})}
	k.SweepReference(r)
	return errors.Join(append(errs, k.NFT.Commit(ctx))...)
}

// doubts warns about fields that ADD silently ignores, as the reference does.
func doubts(r *plugin.Request) (list []string) {
	conf := plugin.ConfOf[Conf](r)
	if conf.MasqAll && !conf.snat() {
		list = append(list, "masqAll has no effect with snat false: nothing is masqueraded")
	}
	if in := r.InList; in != nil && !in.Granted["portMappings"] && len(conf.mappings) == 0 {
		list = append(list, `it publishes nothing: without "capabilities": {"portMappings": true} no runtime tells it of ports`)
	}
	return list
}

// status reports whether we may change the firewall.
func status(_ context.Context, r *plugin.Request) error {
	if err := kernel.Of(r).NFT.Status(); err != nil {
		return spec.Errorf(spec.CodeNotAvailable, "portmap cannot publish ports: %w", err)
	}
	return nil
}
