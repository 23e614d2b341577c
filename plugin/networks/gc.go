// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package networks

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/npwg"
	"github.com/patchbay-net/patchbay/internal/npwg/attached"
	"github.com/patchbay-net/patchbay/internal/npwg/mirror"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// gc removes the further networks of pods that are not valid: first of those that have a record, then of those that have only a
// plan, because the node was booted since. Then it calls GC of the networks themselves, for what no plan names.
func gc(ctx context.Context, r *plugin.Request) error {
	k := kernel.Of(r)
	err := k.Sweep(ctx, r, func(rec *record.Record) error {
		return removePlanned(ctx, forAttachment(r, spec.AttachmentKey{ContainerID: rec.ContainerID, IfName: rec.IfName}))
	})
	if _, ok := r.Valid(); !ok {
		return err
	}
	errs := append([]error{err}, gcPlans(ctx, r)...)
	return errors.Join(append(errs, gcNetworks(ctx, r)...)...)
}

// gcPlans removes what is not valid and has a plan, but no record.
func gcPlans(ctx context.Context, r *plugin.Request) (errs []error) {
	k := kernel.Of(r)
	keep, _ := r.Valid()
	plans, broken := attached.List(r.Session.Paths)
	for _, err := range broken {
		kernel.Warn(r, err)
	}
	for _, plan := range plans {
		o, at := attached.Owner(plan), spec.AttachmentKey{ContainerID: plan.ContainerID, IfName: plan.IfName}
		if plan.Network != r.Network || keep(at.ContainerID, at.IfName) || k.HasRecord(r.Network, o, name) {
			continue
		}
		errs = append(errs, k.Seize(r, kernel.Suspect{Owner: o, Names: at, Since: attached.Since(r.Session.Paths, o)}, func() (kernel.Outcome, error) {
			if err := removePlanned(ctx, forAttachment(r, at)); err != nil {
				return kernel.Kept, err
			}
			return kernel.Removed, nil
		}))
	}
	return errs
}

// forAttachment returns the request of a DEL, with which a GC removes one attachment.
func forAttachment(r *plugin.Request, at spec.AttachmentKey) *plugin.Request {
	call, del := *r.Call, *r
	call.Verb, call.ContainerID, call.IfName = spec.Del, at.ContainerID, at.IfName
	del.Call, del.Owner = &call, owner.Of(r.Network, at.ContainerID, at.IfName)
	return &del
}

// gcNetworks calls GC of the plugins of each network that a definition or a plan has. The valid attachments are those of all plans of
// the node, whichever runtime made them. If a plan cannot be read, they are not known, and gcNetworks does nothing. Plugins of other
// programs are left out: they would remove what runtimes without this plugin attached to the same network.
func gcNetworks(ctx context.Context, r *plugin.Request) (errs []error) {
	plans, broken := attached.List(r.Session.Paths)
	if len(broken) > 0 {
		return nil
	}
	known := &collection{request: r, valid: make(map[string][]spec.AttachmentKey)}
	known.valid[r.Network], _ = r.Head.Valid()
	for _, plan := range plans {
		for i := range plan.Interfaces {
			a := &plan.Interfaces[i]
			known.valid[a.Network] = append(known.valid[a.Network], spec.AttachmentKey{ContainerID: plan.ContainerID, IfName: a.IfName})
			known.add(a)
		}
	}
	definitions, _ := mirror.Definitions(r.Session.Paths) // doctor reports a damaged one
	for i := range definitions {
		d := &definitions[i]
		if a, err := interfaceOf(r, &npwg.Selection{Namespace: d.Namespace, Name: d.Name}, d); err == nil {
			known.add(a)
		}
	}
	for _, a := range known.networks {
		errs = append(errs, known.collect(ctx, a)...)
	}
	return errs
}

// collection is the GC of all further networks.
type collection struct {
	request  *plugin.Request
	valid    map[string][]spec.AttachmentKey // of each network
	networks []*npwg.Interface
}

// add adds a network, unless it has the same one.
func (c *collection) add(a *npwg.Interface) {
	for _, other := range c.networks {
		if other.Network == a.Network && bytes.Equal(bytes.Join(raws(other), nil), bytes.Join(raws(a), nil)) {
			return
		}
	}
	c.networks = append(c.networks, a)
}

func raws(a *npwg.Interface) (list [][]byte) {
	for _, raw := range a.Plugins {
		list = append(list, raw)
	}
	return list
}

// collect calls GC of a network's plugins. Like `patchbay`, it leaves out IPAM plugins after an error.
func (c *collection) collect(ctx context.Context, a *npwg.Interface) (errs []error) {
	if !spec.AtLeast(a.CNIVersion, "1.1.0") {
		return nil
	}
	r, err := c.requestOf(a)
	if err != nil {
		return []error{err}
	}
	for _, raw := range a.Plugins {
		m, err := plugin.NewInner(r, raw, plugin.Given{})
		if err != nil || r.Session.Own(m.Type, r.Call) == nil || len(errs) > 0 && r.Session.IsIPAM(m.Type) {
			continue
		}
		if err := m.Do(ctx, spec.GC, nil); err != nil {
			errs = append(errs, fmt.Errorf("network %s: plugin type=%q failed (GC): %w", a.Network, m.Type, err))
		}
	}
	return errs
}

// requestOf returns the request of a GC with the valid attachments of a network.
func (c *collection) requestOf(a *npwg.Interface) (*plugin.Request, error) {
	conf, err := spec.ParseObject([]byte("{}"))
	if err == nil {
		err = conf.SetValid(c.valid[a.Network])
	}
	if err != nil {
		return nil, err
	}
	data, err := conf.JSON()
	if err != nil {
		return nil, err
	}
	r := *c.request
	r.Network, r.Version = a.Network, a.CNIVersion
	r.Head, err = spec.ParseConf(data)
	return &r, err
}
