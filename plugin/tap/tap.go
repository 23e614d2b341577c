// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package tap is the plugin `tap`: a tap device in the container's namespace, for a virtual
// machine or another program that produces frames. It is made by ioctl on /dev/net/tun
// (CONFIG_TUN) and needs no other program.
package tap

import (
	"context"
	"net"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/endpoint"
	"github.com/patchbay-net/patchbay/plugin/kernel"
	"github.com/patchbay-net/patchbay/spec"
)

const name = "tap"

// kind is the library's name of a tap.
const kind = "tuntap"

// Plugin is the plugin.
var Plugin = plugin.Plugin{
	Name:         name,
	Kind:         plugin.Interface,
	About:        "makes a tap device in the container, for a virtual machine",
	Layer2:       true,
	Capabilities: []string{"mac"},
	Conf:         func() any { return new(Conf) },
	NoPrev:       plugin.NoPrev{Check: "Required prevResult missing"},
	Delegates:    true,

	Helper: helper,

	Validate: validate,

	Add:    add,
	Del:    del,
	Check:  check,
	GC:     gc,
	Status: status,
}

func add(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
	conf := plugin.ConfOf[Conf](r)
	env, err := kernel.Of(r).Env(r)
	if err != nil {
		return nil, err
	}
	mac := conf.mac
	if mac == nil {
		mac = endpoint.AddressesOf(r).Container()
	}
	link := object(r, conf, mac)
	if conf.SelinuxContext != "" {
		l, err := newLabelled(r, conf.SelinuxContext)
		if err != nil {
			return nil, err
		}
		env.AddTap, link.Label = l.add, l.label
	}
	return single(r, conf, link).Attach(ctx, r, env)
}

func object(r *plugin.Request, conf *Conf, mac net.HardwareAddr) netstate.Tap {
	return netstate.Tap{
		Tap: nl.Tap{Name: r.IfName, MultiQueue: conf.MultiQueue, Owner: conf.Owner, Group: conf.Group},
		MAC: mac, MTU: conf.MTU, Mark: r.Owner, Temp: endpoint.TempName(r.Owner), Bridge: conf.Bridge,
	}
}

func single(r *plugin.Request, conf *Conf, link netstate.Tap) *endpoint.Single {
	return &endpoint.Single{
		DNS: conf.DNS, MAC: link.MAC, MTU: conf.MTU, Link: netstate.State{link},
		Exists: spec.Errorf(spec.CodeInternal, "failed to rename tap to %q: %w", r.IfName, unix.EEXIST),
	}
}

func del(ctx context.Context, r *plugin.Request) error { return endpoint.DetachLink(ctx, r, kind) }

func check(ctx context.Context, r *plugin.Request) error {
	env, err := kernel.Of(r).Env(r)
	if err != nil {
		return err
	}
	mac, err := endpoint.FoundMAC(r, env)
	if err != nil {
		return err
	}
	conf := plugin.ConfOf[Conf](r)
	return single(r, conf, object(r, conf, mac)).Check(ctx, r, env)
}

func gc(ctx context.Context, r *plugin.Request) error { return endpoint.CollectLinks(ctx, r, kind) }

// status fails on a node without /dev/net/tun, and for a label on a node without SELinux.
func status(_ context.Context, r *plugin.Request) error {
	if err := nl.CanTap(); err != nil {
		return spec.Errorf(spec.CodeNotAvailable, "taps cannot be made: %w", err)
	}
	if conf := plugin.ConfOf[Conf](r); conf.SelinuxContext != "" {
		if _, err := newLabelled(r, conf.SelinuxContext); err != nil {
			return spec.Errorf(spec.CodeNotAvailable, "%w", err)
		}
	}
	return endpoint.Ready(r)
}
