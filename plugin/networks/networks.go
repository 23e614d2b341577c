// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package networks is the plugin `networks`. Within the ADD of a pod's default network it attaches the pod to the further networks
// that the pod's annotation k8s.v1.cni.cncf.io/networks selects (internal/npwg has the rules). It reads only files of the node, which
// the agent writes (internal/npwg/mirror), and asks neither the agent nor the API server.
//
//   - Everything is decided before the first change: the networks, the interfaces, the plugins' configurations. This is the plan
//     (internal/npwg/attached).
//   - The plugins of a network run as members of a `patchbay` list do: in this process if they are this program's, one firewall
//     transaction for all of them. An ADD attaches all networks or none.
//   - DEL, CHECK and GC use the plan alone, so they do not need the definitions, the annotation or the agent.
//
// Use it last in the pods' network. It returns the previous result, because a runtime takes every address of a result for the
// pod's own.
package networks

import (
	"context"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/npwg/attached"
	"github.com/patchbay-net/patchbay/internal/npwg/mirror"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

const (
	name   = "networks"
	noPrev = "further networks need the pod's default network: put networks behind the plugin that makes its interface"
)

// Plugin has the name, the versions and the functions of this plugin.
var Plugin = plugin.Plugin{
	Name:         name,
	Kind:         plugin.Chained,
	About:        "attaches a pod to the further networks that its annotation selects",
	MinVersion:   "0.3.0", // chaining needs prevResult
	Capabilities: []string{annotationsCapability},
	Conf:         func() any { return defaults() },
	NoPrev:       plugin.NoPrev{Add: noPrev, Check: noPrev},
	Warnings:     doubts,

	Add:    add,
	Del:    del,
	Check:  check,
	GC:     gc,
	Status: status,
}

// add returns the previous result, without the default routes that the pod's annotation gives to another network.
func add(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
	chosen, err := choose(ctx, r)
	if err != nil || chosen == nil {
		return r.Prev(), err
	}
	w, err := prepare(r, chosen)
	if err != nil {
		return nil, err
	}
	if err := w.attachAll(ctx); err != nil {
		return nil, err
	}
	return r.Prev(), nil
}

// attachAll makes all changes. The record keeps other calls of the attachment away until the end of the session.
func (w *work) attachAll(ctx context.Context) error {
	r := w.request
	if err := kernel.Of(r).Record(r, &record.Record{}); err != nil {
		return err
	}
	if err := w.replace(ctx); err != nil {
		return err
	}
	env, err := kernel.Of(r).Env(r)
	if err != nil {
		return err
	}
	if err := w.free(env); err != nil {
		return err
	}
	if r.Session.Dry == nil {
		r.Undo(func(ctx context.Context) error { return remove(ctx, r, w.plan) })
	}
	for i := range w.lists {
		if err := w.attach(ctx, i); err != nil {
			return err
		}
	}
	if err := w.route(ctx, env); err != nil {
		return err
	}
	return w.save()
}

// status reports whether an ADD could read the agent's files and write its own.
func status(_ context.Context, r *plugin.Request) error {
	for _, ready := range []func() error{
		func() error { return mirror.Ready(r.Session.Paths) },
		func() error { return attached.Ready(r.Session.Paths) },
		func() error { return kernel.Of(r).Records.Ready(r.Network) },
	} {
		if err := ready(); err != nil {
			return spec.Errorf(spec.CodeNotAvailable, "networks of pods: %w", err)
		}
	}
	return nil
}
