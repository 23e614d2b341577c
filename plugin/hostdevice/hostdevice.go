// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package hostdevice is the plugin `host-device`. The plugin moves a device of the host into a
// container, usually a network card or a virtual function. DEL returns the device unchanged. The
// record holds the properties that the device had before the move.
package hostdevice

import (
	"context"
	"net"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/endpoint"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

const name = "host-device"

// Plugin has the name, the versions and the functions of this plugin.
var Plugin = plugin.Plugin{
	Name:         name,
	Kind:         plugin.Interface,
	About:        "moves a device of the host into a container",
	Layer2:       true,
	Capabilities: []string{"deviceID"},
	Conf:         func() any { return new(Conf) },
	NoPrev:       plugin.NoPrev{Check: "Required prevResult missing"},
	Delegates:    true,

	Validate: validate,
	Warnings: doubts,

	Add:    add,
	Del:    del,
	Check:  check,
	GC:     gc,
	Status: status,
}

func add(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
	conf := plugin.ConfOf[Conf](r)
	sys := sysfs(r.Session.Paths.Sys)
	if err := sys.resolve(conf); err != nil {
		return nil, err
	}
	env, err := kernel.Of(r).Env(r)
	if err != nil {
		return nil, err
	}
	if err := earlier(ctx, r, env.Host); err != nil {
		return nil, err
	}
	if conf.DPDKMode {
		return addUserSpace(ctx, r, conf)
	}
	link, err := findHealed(r, env, conf)
	if err != nil {
		return nil, err
	}
	device, err := describe(env.Host, sys, link)
	if err != nil {
		return nil, err
	}
	m := move{device: device, ifName: r.IfName, netns: r.NetNS, mac: link.Attrs().HardwareAddr}
	return single(r, conf, m).Attach(ctx, r, env)
}

func single(r *plugin.Request, conf *Conf, m move) *endpoint.Single {
	return &endpoint.Single{
		DNS: conf.DNS, MAC: m.mac, Link: netstate.State{m},
		Record:    &record.Record{Device: m.device},
		Configure: endpoint.OnSegment,
		Exists:    spec.Errorf(spec.CodeInternal, "failed to move link: the container has an interface %q: %w", r.IfName, unix.EEXIST),
	}
}

// addUserSpace gives addresses to a device without a kernel driver. Its record has no device,
// which means that nothing was moved.
func addUserSpace(ctx context.Context, r *plugin.Request, conf *Conf) (*spec.Result, error) {
	if err := kernel.Of(r).Record(r, &record.Record{}); err != nil {
		return nil, err
	}
	var ipam *spec.Result
	if conf.IPAM.Type != "" {
		var err error
		if ipam, err = r.IPAMAdd(ctx); err != nil {
			return nil, err
		}
	}
	_, result, err := (&endpoint.Single{DNS: conf.DNS}).Compile(r.IfName, r.NetNS, ipam)
	return result, err
}

func del(ctx context.Context, r *plugin.Request) error {
	return endpoint.DetachSingle(ctx, r, bringHome(r))
}

func gc(ctx context.Context, r *plugin.Request) error {
	return endpoint.CollectSingle(ctx, r, bringHome(r))
}

// bringHome moves the device out of the container. If the namespace is gone, it finds the
// device on the host.
func bringHome(r *plugin.Request) endpoint.Remover {
	return func(ctx context.Context, at endpoint.Place, rec *record.Record) error {
		host, err := kernel.Of(r).Host()
		if err != nil {
			return err
		}
		t := trip{ifName: r.IfName, sandbox: at.Conn, host: host}
		if rec == nil {
			rec = renamed(r)
		}
		if rec == nil {
			if t.Device, err = unrecorded(r, host, at); err != nil || t.Device == nil {
				return err
			}
			return t.home(ctx)
		}
		if rec.Device == nil {
			return nil
		}
		t.Device, t.ifName = rec.Device, rec.IfName
		if in := holder(r, t.Device, rec); in != nil {
			t.sandbox = in // the runtime may name another namespace
		}
		if err := t.home(ctx); err != nil || rec.Network == r.Network {
			return err
		}
		return kernel.Of(r).Records.Remove(rec.Network, rec.Owner, name) // the record under the network's other name
	}
}

func check(ctx context.Context, r *plugin.Request) error {
	conf, k := plugin.ConfOf[Conf](r), kernel.Of(r)
	rec := k.Read(r)
	if rec == nil { // the reference plugin moved the device
		if err := sysfs(r.Session.Paths.Sys).resolve(conf); err != nil {
			return err
		}
		rec = &record.Record{}
	} else {
		conf.DPDKMode = rec.Device == nil
	}
	if conf.DPDKMode {
		return nil
	}
	return endpoint.CheckFound(ctx, r, func(mac net.HardwareAddr) *endpoint.Single {
		return single(r, conf, move{device: rec.Device, ifName: r.IfName, netns: r.NetNS, mac: mac})
	})
}

// status reports whether the device exists. The device may be on the host, or busy in one of
// our containers. status cannot check a device that the runtime chooses.
func status(_ context.Context, r *plugin.Request) error {
	conf := plugin.ConfOf[Conf](r)
	if !conf.selects() {
		return endpoint.Ready(r)
	}
	k, sys := kernel.Of(r), sysfs(r.Session.Paths.Sys)
	if err := sys.resolve(conf); err != nil {
		return spec.Errorf(spec.CodeNotAvailable, "%w", err)
	}
	host, err := k.Host()
	if err != nil {
		return spec.Errorf(spec.CodeNotAvailable, "%w", err)
	}
	if !conf.DPDKMode {
		if _, err := sys.find(conf, host); err != nil && !inUse(r, sys, conf) {
			return spec.Errorf(spec.CodeNotAvailable, "%w", err)
		}
	}
	return endpoint.Ready(r)
}
