// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/spec"
)

// small is a bridge of another program with an MTU below IPv6's minimum.
func small(w *endpointtest.World) netlink.Link {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = "tbr0", 576
	br := &netlink.Bridge{LinkAttrs: attrs}
	endpointtest.Must(w, w.HostConn().LinkAdd(br))
	return br
}

func setMTU(w *endpointtest.World) {
	endpointtest.Must(w, w.HostConn().LinkSetMTU(w.HostLink("tbr0"), 576))
}

// After a change to the bridge, STATUS fails exactly when ADD does.
func TestStatusOfGateway(t *testing.T) {
	const mtu = `"tbr0" cannot have the address fd09::1/64: its MTU is 576, and IPv6 needs at least 1280; ip link set tbr0 mtu 1500`
	const off = `"tbr0" cannot have the address fd09::1/64: IPv6 is switched off; sysctl -w net/ipv6/conf/`
	const flat = `"bridge": "tbr0", "isGateway": true, "ipam": {"type": "host-local", "subnet": "10.9.0.0/24"}`
	for name, c := range map[string]struct {
		conf    string
		prepare func(w *endpointtest.World)
		want    string
	}{
		"nothing is there": {dual, func(*endpointtest.World) {}, ""},
		"as ADD left it":   {dual, func(w *endpointtest.World) { w.Pod("z", dual).Add() }, ""},
		"small, in use":    {dual, func(w *endpointtest.World) { w.Pod("z", dual).Add(); setMTU(w) }, mtu},
		"small, idle": {dual, func(w *endpointtest.World) {
			endpointtest.Must(w, w.Pod("z", dual).Add().Do(spec.Del))
			setMTU(w)
		}, mtu},
		"made small by others": {dual, func(w *endpointtest.World) { small(w) }, ""},
		"with a small port": {dual, func(w *endpointtest.World) {
			br := small(w)
			node.Join(w.Host, "oport", w.Space("other"), "eth0")
			endpointtest.Must(w, w.HostConn().LinkSetMTU(w.HostLink("oport"), 576))
			endpointtest.Must(w, w.HostConn().LinkSetMaster(w.HostLink("oport"), br))
		}, mtu},
		"small, IPv4 only": {flat, func(w *endpointtest.World) { w.Pod("z", flat).Add(); setMTU(w) }, ""},
		"without IPv6": {dual, func(w *endpointtest.World) {
			w.Pod("z", dual).Add()
			w.Host.Sysctl("net/ipv6/conf/tbr0/disable_ipv6", "1")
		}, off + "tbr0/disable_ipv6=0"},
		"without IPv6, IPv4 only": {flat, func(w *endpointtest.World) {
			w.Pod("z", flat).Add()
			w.Host.Sysctl("net/ipv6/conf/tbr0/disable_ipv6", "1")
		}, ""},
		"not made, without IPv6": {dual, func(w *endpointtest.World) {
			const key = "net/ipv6/conf/default/disable_ipv6"
			w.Host.Sysctl(key, "1")
			w.Cleanup(func() { w.Host.Sysctl(key, "0") })
		}, off + "default/disable_ipv6=0"},
		"in a VLAN, without IPv6": {dual + `, "vlan": 100`, func(w *endpointtest.World) {
			nettest.Need(w.T, nettest.VLANFiltering())
			w.Pod("z", dual+`, "vlan": 100`).Add()
			w.Host.Sysctl("net/ipv6/conf/tbr0.100/disable_ipv6", "1")
		}, strings.ReplaceAll(off, "tbr0", "tbr0.100") + "tbr0.100/disable_ipv6=0"},
		"another address": {dual, func(w *endpointtest.World) { small(w); w.Host.Address("tbr0", "10.9.0.1/32") },
			`"tbr0" already has an IP address different from 10.9.0.1/24; it is 10.9.0.1/32: ip addr del 10.9.0.1/32 dev tbr0`},
		"another address, by force": {dual + `, "forceAddress": true`,
			func(w *endpointtest.World) { small(w); w.Host.Address("tbr0", "10.9.0.1/32") }, ""},
		"another address, layer 3": {layer3, func(w *endpointtest.World) { small(w); w.Host.Address("tbr0", "10.9.0.1/32") }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c.prepare(w)
			p := w.Pod("a", c.conf)
			err := p.Do(spec.Status)
			if c.want == "" {
				endpointtest.Must(t, err)
				p.Add()
				return
			}
			w.Fails(err, c.want)
			if got := spec.ErrorCode(err); got != spec.CodeNotAvailable {
				t.Errorf("code %d", got)
			}
			if p.Do(spec.Add) == nil {
				t.Error("ADD works")
			}
		})
	}
}

// One range of a set that fits is enough, because the next ADD may use it.
func TestStatusOfRanges(t *testing.T) {
	const conf = `"bridge": "tbr0", "isGateway": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "fd09::/64"}, {"subnet": "fd0a::/64"}]]}`
	w := newWorld(t)
	p := w.Pod("a", conf)
	endpointtest.Must(t, w.Pod("z", conf).Add().Do(spec.Del))
	w.Host.Address("tbr0", "fd0a::77/112")
	endpointtest.Must(t, p.Do(spec.Status))
	endpointtest.Must(t, w.HostConn().AddrDel(w.HostLink("tbr0"), parseAddr("fd09::1/64")))
	w.Host.Address("tbr0", "fd09::77/112")
	w.Fails(p.Do(spec.Status), `"tbr0" already has an IP address different from fd0a::1/64`)
}

// If no ADD can write its record, STATUS fails with the error of ADD.
func TestStatusOfRecords(t *testing.T) {
	const run, below = "/run/patchbay", "/run/patchbay/attachments"
	for name, c := range map[string]struct {
		spoil func(t *testing.T) error
		want  string
	}{
		"no directory":   {func(*testing.T) error { return os.WriteFile(below, nil, 0o600) }, "no directory"},
		"open to others": {func(*testing.T) error { return errors.Join(os.Mkdir(below, 0o700), os.Chmod(below, 0o777)) }, "everybody may write to it"},
		"read-only":      {func(t *testing.T) error { return readOnly(t, run) }, "read-only file system"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			p := w.Pod("a", layer3)
			endpointtest.Must(t, errors.Join(os.RemoveAll(run), os.Mkdir(run, 0o700)))
			endpointtest.Must(t, p.Do(spec.Status))
			t.Cleanup(func() { endpointtest.Must(t, os.RemoveAll(run)) })
			endpointtest.Must(t, c.spoil(t))
			w.Fails(p.Do(spec.Status), "no record can be written: ")
			w.Fails(p.Do(spec.Status), c.want)
			w.Fails(p.Do(spec.Add), c.want)
		})
	}
}

func readOnly(t *testing.T, dir string) error {
	err := unix.Mount(dir, dir, "", unix.MS_BIND, "")
	if err == nil {
		t.Cleanup(func() { endpointtest.Must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
		err = unix.Mount(dir, dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
	}
	return err
}
