// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package vrf is the plugin `vrf`. The plugin puts the container's interface into a VRF, a
// virtual router with its own routing table (Linux 4.3, CONFIG_NET_VRF). The VRF is made in the
// container's namespace for the first interface and deleted with the last one.
package vrf

import (
	"context"
	"errors"
	"fmt"

	"github.com/patchbay-net/patchbay/internal/endpoint"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

const (
	name   = "vrf"
	noPrev = "missing prevResult from earlier plugin"
)

// Plugin has the name, the versions and the functions of this plugin.
var Plugin = plugin.Plugin{
	Name:       name,
	Kind:       plugin.Chained,
	About:      "puts the container's interface into a VRF, with a routing table of its own",
	MinVersion: "0.3.1", // as in the reference
	Conf:       func() any { return new(Conf) },
	NoPrev:     plugin.NoPrev{Add: noPrev, Check: noPrev},
	Validate:   validate,

	Add:    add,
	Del:    del,
	Check:  check,
	GC:     kernel.CollectRecords,
	Status: status,
}

// validate returns an error if the VRF has the name of an interface that every container has.
func validate(r *plugin.Request) error {
	if vrf := plugin.ConfOf[Conf](r).VRFName; vrf == "lo" {
		return spec.Invalid("vrf %q cannot have the name of an existing interface", vrf)
	}
	return nil
}

func add(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
	conf, k := plugin.ConfOf[Conf](r), kernel.Of(r)
	env, err := k.Env(r)
	if err != nil {
		return nil, err
	}
	unlock, err := env.Sandbox.Lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	table, there, err := choose(env.Sandbox, conf)
	if err != nil {
		return nil, err
	}
	rec := &record.Record{VRF: &record.VRF{Name: conf.VRFName, Made: !there}}
	if err := keepRecord(k, r, env.Sandbox, rec); err != nil {
		return nil, err
	}
	return r.Prev(), k.Apply(ctx, r, env, compile(r, conf, table))
}

// choose returns the table: the configured one, or the VRF's, or a free one. The result there
// reports whether the VRF exists already.
func choose(c *nl.Conn, conf *Conf) (table int, there bool, err error) {
	have, err := netstate.FindVRF(c, conf.VRFName)
	switch {
	case err != nil:
		return 0, false, err
	case have != nil && conf.Table != 0 && have.Table != conf.Table:
		return 0, true, spec.Invalid("VRF %s already exist with different routing table %d", conf.VRFName, have.Table)
	case have != nil:
		return int(have.Table), true, nil
	case conf.Table != 0:
		return int(conf.Table), false, nil
	}
	table, err = c.FreeTable(1)
	return table, false, err
}

// keepRecord writes the record, unless the interface is already in a VRF. In that case this ADD
// will fail, and the record belongs to the first ADD.
func keepRecord(k *kernel.Kernel, r *plugin.Request, c *nl.Conn, rec *record.Record) error {
	if link, err := c.Link(r.IfName); err == nil && link.Attrs().MasterIndex != 0 {
		return nil
	}
	return k.Record(r, rec)
}

func compile(r *plugin.Request, conf *Conf, table int) netstate.State {
	return netstate.State{
		netstate.VRF{Name: conf.VRFName, Table: table},
		netstate.Member{Link: r.IfName, VRF: conf.VRFName},
	}
}

// check compares the kernel with the result: the VRF must exist with its member, and the VRF's
// table must have the result's routes.
func check(ctx context.Context, r *plugin.Request) error {
	conf := plugin.ConfOf[Conf](r)
	env, err := kernel.Of(r).Env(r)
	if err != nil {
		return err
	}
	state := compile(r, conf, int(conf.Table))
	if have, err := netstate.FindVRF(env.Sandbox, conf.VRFName); err == nil && have != nil {
		for _, rt := range r.Prev().Routes {
			if rt.Table == nil || *rt.Table == 0 {
				state = append(state, netstate.Route{
					Where: netstate.Sandbox, Link: r.IfName, Dst: rt.Dst, Gateway: rt.GW, Table: int(have.Table),
				})
			}
		}
	}
	return kernel.Check(ctx, env, state)
}

// del takes the interface out of the VRF. If it was the last interface, del deletes the VRF.
func del(ctx context.Context, r *plugin.Request) error {
	return kernel.DetachInside(r, func(c *nl.Conn, rec *record.Record) error { return leave(ctx, r, c, rec) })
}

func leave(ctx context.Context, r *plugin.Request, c *nl.Conn, rec *record.Record) error {
	unlock, err := c.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	vrfName, made := whereabouts(r, rec)
	if vrfName == "" {
		return nil
	}
	have, err := netstate.FindVRF(c, vrfName)
	if errors.Is(err, netstate.ErrNotVRF) {
		return nil // another link has the name: nothing is ours
	}
	if err != nil || have == nil {
		return err
	}
	link, err := c.Link(r.IfName)
	switch {
	case nl.IsNotFound(err):
	case err != nil:
		return err
	case link.Attrs().MasterIndex == have.Index:
		if err := c.LinkSetNoMaster(link); err != nil && !nl.IsNotFound(err) {
			return fmt.Errorf("resetMaster: could not take %s out of %s: %w", r.IfName, vrfName, err)
		}
	}
	return netstate.DeleteEmptyVRF(c, vrfName, made)
}

// whereabouts returns the name of the VRF. If made is true, the VRF may be deleted even without
// our mark. Then this attachment made it, or the reference plugin did, which writes no record.
func whereabouts(r *plugin.Request, rec *record.Record) (vrfName string, made bool) {
	if rec != nil && rec.VRF != nil {
		return rec.VRF.Name, rec.VRF.Made
	}
	if _, err := r.Conf(); err != nil {
		kernel.Warn(r, err)
	}
	return plugin.ConfOf[Conf](r).VRFName, true
}

// Conf is the configuration of this plugin.
type Conf struct {
	// VRFName is the VRF in the container that the interface joins; required. It is made if
	// it is missing, and removed with its last interface.
	// Reference: also removes one that existed before.
	VRFName string `json:"vrfname"`

	// Table is the VRF's routing table. Without it, the table of an existing VRF is used, or the
	// first from 1 on that no VRF, rule or route has. Reference: looks only at other VRFs, so it
	// may take a table of another program, or main.
	Table uint32 `json:"table"`
}

// Load validates the configuration.
func (c *Conf) Load(r *plugin.Request) error {
	if c.VRFName == "" {
		return spec.Invalid("configuration is expected to have a valid vrf name")
	}
	if err := spec.ValidateNewIfName(c.VRFName); err != nil {
		return spec.Invalid("configuration is expected to have a valid vrf name: %q: %w", c.VRFName, err)
	}
	if c.VRFName == r.IfName {
		return spec.Invalid("vrf %q cannot have the name of the interface", c.VRFName)
	}
	return nil
}

// status reports whether the kernel supports VRFs (CONFIG_NET_VRF, Linux 4.3).
func status(_ context.Context, r *plugin.Request) error { return endpoint.KernelMakes(r, name) }
