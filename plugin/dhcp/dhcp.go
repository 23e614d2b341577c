// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package dhcp is the plugin `dhcp`. The plugin gets addresses from DHCP servers on the
// container's network. A lease must be renewed, so a process must keep running. This process is
// the keeper: `patchbayd dhcp` or the reference's daemon, which listens on a unix socket. The
// plugin must be called after the interface exists, because it reaches the servers through the
// interface.
package dhcp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/patchbay-net/patchbay/internal/dhcprpc"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

const name = "dhcp"

// Plugin has the name, the versions and the functions of this plugin.
var Plugin = plugin.Plugin{
	Name:     name,
	Kind:     plugin.IPAM,
	About:    "gets addresses from DHCP servers, through a keeper of leases",
	Conf:     func() any { return new(dhcprpc.Conf) },
	Validate: validate,
	Warnings: doubts,

	Add:    add,
	Del:    del,
	Check:  check,
	GC:     gc,
	Status: status,
}

// validate decodes the configuration.
func validate(r *plugin.Request) error {
	_, err := load(r)
	return err
}

func doubts(r *plugin.Request) (list []string) {
	conf, err := load(r)
	if err != nil {
		return nil
	}
	if !filepath.IsAbs(conf.Socket()) {
		list = append(list, fmt.Sprintf("daemonSocketPath %q is no absolute path, and a runtime may start plugins in any directory", conf.Socket()))
	}
	for i, p := range conf.Provide {
		if p.Value == "" && p.FromArg == "" {
			list = append(list, fmt.Sprintf("provide[%d] has no value and no fromArg: nothing is sent", i))
		}
	}
	return list
}

// load refuses the configurations that the keeper would refuse, so that the keeper need not be
// called.
func load(r *plugin.Request) (*dhcprpc.IPAM, error) {
	conf, err := dhcprpc.Parse(r.Config)
	if err != nil {
		return nil, err
	}
	_, err = conf.Options(r.Args)
	return conf, err
}

// argsOf returns the request for the keeper. The request has the absolute path of the
// namespace, because the keeper may run in another directory.
func argsOf(r *plugin.Request) (*dhcprpc.Args, error) {
	a := &dhcprpc.Args{ContainerID: r.ContainerID, Netns: r.NetNS, IfName: r.IfName, Args: r.Args, StdinData: r.Config}
	if r.NetNS == "" {
		return a, nil
	}
	var err error
	if a.Netns, err = filepath.Abs(r.NetNS); err != nil {
		return nil, fmt.Errorf("failed to make %q an absolute path: %w", r.NetNS, err)
	}
	return a, nil
}

// prepare returns the configuration and the request for ADD and CHECK. For both, the keeper
// works in the container's namespace.
func prepare(r *plugin.Request) (*dhcprpc.IPAM, *dhcprpc.Args, error) {
	conf, err := load(r)
	if err != nil {
		return nil, nil, err
	}
	if err := r.CheckNetNS(); err != nil {
		return nil, nil, err
	}
	args, err := argsOf(r)
	return conf, args, err
}

func add(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
	conf, args, err := prepare(r)
	if err != nil {
		return nil, err
	}
	if dry := r.Session.Dry; dry != nil {
		return pretend(conf, dry), nil
	}
	k, err := dial(ctx, r.Session, conf)
	if err != nil {
		return nil, err
	}
	defer k.Close()
	if err := kernel.Of(r).Record(r, &record.Record{Plugin: name, Socket: conf.Socket()}); err != nil {
		return nil, err
	}
	if err := r.Step("ask for a lease"); err != nil {
		return nil, err
	}
	r.Undo(func(ctx context.Context) error { return release(ctx, r, conf.Socket(), args) })
	return k.Call(ctx, dhcprpc.Allocate, args)
}

// pretend returns the result of an ADD in a dry run. A dry run asks no server, so the result has
// an address from a documentation prefix.
func pretend(conf *dhcprpc.IPAM, dry func(string)) *spec.Result {
	result := &spec.Result{}
	say := func(family, address, gateway string) {
		dry(fmt.Sprintf("ask a %s server through the keeper at %s; %s is a placeholder for its answer", family, conf.Socket(), address))
		gw, _ := netip.ParseAddr(gateway)
		result.IPs = append(result.IPs, spec.IPConfig{Address: netip.MustParsePrefix(address), Gateway: gw})
	}
	if conf.V4() {
		say("DHCPv4", "192.0.2.2/24", "192.0.2.1")
	}
	if conf.DHCPv6 {
		say("DHCPv6", "2001:db8::2/128", "")
	}
	return result
}

// dial connects to the keeper. If the configuration sets startKeeper, dial starts a keeper first.
func dial(ctx context.Context, s *plugin.Session, conf *dhcprpc.IPAM) (*dhcprpc.Client, error) {
	k, err := dhcprpc.Dial(ctx, conf.Socket())
	if errors.Is(err, dhcprpc.ErrDial) && conf.StartKeeper {
		if err = startKeeper(ctx, s.Environ(), conf.Socket()); err == nil {
			k, err = dhcprpc.Dial(ctx, conf.Socket())
		}
	}
	if err != nil {
		return nil, noKeeper(err)
	}
	if !k.Ours && (conf.DHCPv6 || !conf.V4()) {
		k.Close()
		return nil, spec.Errorf(spec.CodeUnsupportedField, "the keeper at %s knows DHCPv4 only", conf.Socket()).
			WithDetails("it is not patchbayd: stop it and start `patchbayd dhcp`, or leave dhcpv4 and dhcpv6 out")
	}
	return k, nil
}

// noKeeper returns an error with code 50 that says how to start a keeper.
func noKeeper(err error) error {
	return spec.Errorf(spec.CodeNotAvailable, "error dialing DHCP daemon: %w", err).
		WithDetails("start a keeper of leases: systemctl enable --now patchbay-dhcp.socket, or without systemd: patchbayd dhcp --detach")
}

// answerTime is how long DEL, GC and CHECK wait for a keeper. A limit is needed, because the
// reference's daemon may never answer.
const answerTime = 15 * time.Second

// release asks the keeper to release the lease. If no keeper runs, release removes the lease's
// file, so that the next keeper does not renew the lease. The server's lease then expires.
func release(ctx context.Context, r *plugin.Request, socket string, a *dhcprpc.Args) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	k, err := dhcprpc.Dial(ctx, socket)
	if errors.Is(err, dhcprpc.ErrDial) {
		kernel.Warn(r, fmt.Errorf("lease of %s/%s is left to expire: %w", a.ContainerID, a.IfName, err))
		return durable.Remove(dhcprpc.LeaseFile(r.Session.Paths.Run, owner.Of(r.Network, a.ContainerID, a.IfName)))
	}
	if err != nil {
		return err
	}
	defer k.Close()
	_, err = k.Call(ctx, dhcprpc.Release, a)
	return err
}

// del releases the lease. It needs no valid configuration, because the record names the socket.
func del(ctx context.Context, r *plugin.Request) error {
	k := kernel.Of(r)
	rec, err := k.Records.Read(r.Network, r.Owner, name)
	if err != nil {
		kernel.Warn(r, err)
	}
	args, err := argsOf(r)
	if err != nil {
		return err
	}
	if err := release(ctx, r, socketOf(r, rec), args); err != nil {
		return err
	}
	return k.Records.Remove(r.Network, r.Owner, name)
}

// socketOf returns the socket of the keeper that may have the lease: the record's socket or,
// if there is no record, the configuration's.
func socketOf(r *plugin.Request, rec *record.Record) string {
	if rec != nil && rec.Socket != "" {
		return rec.Socket
	}
	conf, err := dhcprpc.Parse(r.Config)
	if err != nil {
		kernel.Warn(r, err)
		return dhcprpc.DefaultSocket
	}
	return conf.Socket()
}

// check asks the keeper for the lease and compares its addresses with the previous result.
func check(ctx context.Context, r *plugin.Request) error {
	conf, args, err := prepare(r)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	k, err := dhcprpc.Dial(ctx, conf.Socket())
	if err != nil {
		return noKeeper(err)
	}
	defer k.Close()
	method := dhcprpc.Allocate // the reference's daemon has no other method
	if k.Ours {
		method = dhcprpc.Check
	}
	lease, err := k.Call(ctx, method, args)
	if err != nil {
		return err
	}
	return match(r, lease)
}

// match compares the lease with the previous result, if there is one. The server may have
// changed the address in between.
func match(r *plugin.Request, lease *spec.Result) error {
	if r.Prev() == nil {
		return nil
	}
	for _, want := range lease.IPs {
		if !slices.ContainsFunc(r.Prev().IPs, func(have spec.IPConfig) bool { return have.Address.Addr() == want.Address.Addr() }) {
			return spec.Errorf(spec.CodeInternal, "dhcp: Failed to match addr %v on interface %v", want.Address.Addr(), r.IfName).
				WithDetails("the server has given the container another address since")
		}
	}
	return nil
}

// status succeeds if a keeper listens or can be started.
func status(ctx context.Context, r *plugin.Request) error {
	conf, err := load(r)
	if err != nil {
		return err
	}
	k, err := dhcprpc.Dial(ctx, conf.Socket())
	if errors.Is(err, dhcprpc.ErrDial) && conf.StartKeeper {
		if _, err := findKeeper(r.Session.Environ()); err != nil {
			return noKeeper(err)
		}
		return nil
	}
	if err != nil {
		return noKeeper(err)
	}
	k.Close()
	if !k.Ours && (conf.DHCPv6 || !conf.V4()) {
		return spec.Errorf(spec.CodeNotAvailable, "the keeper at %s knows DHCPv4 only", conf.Socket())
	}
	return nil
}

// gc releases the leases of attachments that are not valid. Our records name these leases, with
// their keepers. Our keeper also knows leases that the reference's plugin got from it.
func gc(ctx context.Context, r *plugin.Request) error {
	err := kernel.Of(r).Sweep(ctx, r, func(rec *record.Record) error { return releaseRecorded(ctx, r, rec) })
	if _, ok := r.Valid(); !ok {
		return err
	}
	return errors.Join(err, collect(ctx, r))
}

func releaseRecorded(ctx context.Context, r *plugin.Request, rec *record.Record) error {
	args := &dhcprpc.Args{ContainerID: rec.ContainerID, Netns: rec.NetNS, IfName: rec.IfName, StdinData: r.Config}
	return release(ctx, r, socketOf(r, rec), args)
}

// collect passes the GC to the configured keeper, if the keeper is ours.
func collect(ctx context.Context, r *plugin.Request) error {
	config, all, err := r.Sparing()
	if all || err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	k, err := dhcprpc.Dial(ctx, socketOf(r, nil))
	if errors.Is(err, dhcprpc.ErrDial) {
		return nil
	}
	if err != nil {
		return err
	}
	defer k.Close()
	if !k.Ours {
		return nil
	}
	_, err = k.Call(ctx, dhcprpc.Collect, &dhcprpc.Args{StdinData: config})
	return err
}
