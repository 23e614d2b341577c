// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
)

// localNet lets packets from the host's 127.0.0.0/8 leave through an interface. The kernel drops
// such packets unless route_localnet is set. But route_localnet also lets every machine behind
// the interface reach services on the host's loopback (CVE-2020-8558). So localNet also adds a
// guard to the firewall; the reference adds none. The last attachment removes guard and setting.
type localNet struct {
	ifName, network string
	owner           owner.Key
	k               *kernel.Kernel
}

func (l localNet) key() string { return "net/ipv4/conf/" + l.ifName + "/route_localnet" }

func (l localNet) fact() netstate.HeldFact {
	return netstate.HeldFact{
		Fact: record.Fact{
			Name:     factLocalNet + l.ifName,
			Elements: []nft.Element{nft.GuardLoopback(l.ifName, l.network)},
		},
		Owner: l.owner,
	}
}

// String describes the guard and the sysctl.
func (l localNet) String() string { return l.fact().String() + "; sysctl -w " + l.key() + "=1" }

// Ensure holds the fact, queues the guard and sets the sysctl.
func (l localNet) Ensure(ctx context.Context, env *netstate.Env) (netstate.Undo, error) {
	link, err := env.Link(netstate.Host, l.ifName)
	if err != nil {
		return nil, err
	}
	index := link.Attrs().Index
	f, first := l.fact(), *env
	now := int32(-1) // not known
	first.First = func(f *record.Fact) (err error) {
		now, err = env.Host.IPv4Setting(index, nl.RouteLocalnet)
		if err == nil && now != 1 {
			f.Before = map[string]string{l.key(): strconv.Itoa(int(now))}
		}
		return err
	}
	held := l.k.Records.Holds(f.Name, l.owner)
	if _, err := f.Ensure(ctx, &first); err != nil {
		return nil, fmt.Errorf("unable to enable route_localnet: %w", err)
	}
	undo := func(ctx context.Context) error {
		if held { // an earlier ADD holds it
			return nil
		}
		return l.k.ReleaseFact(ctx, f.Name, l.owner)
	}
	if now < 0 { // read it while the fact is held, because an earlier last holder may have reset it
		now, err = env.Host.IPv4Setting(index, nl.RouteLocalnet)
	}
	if err == nil && now != 1 {
		err = l.set(env.Host, link)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("unable to enable route_localnet: %w", err), undo(ctx))
	}
	return undo, nil
}

// set sets the sysctl. A netlink message takes 0.1 ms less than opening the file. But for the message the
// kernel walks all IPv6 routes, 0.8 ms with 5,000 links. So set sends a message only for a bridge, whose
// sysctl only the first attachment sets, or if /proc/sys is read-only.
func (l localNet) set(host *nl.Conn, link netlink.Link) error {
	if link.Type() != "bridge" {
		err := host.SetSysctl(l.key(), "1")
		if !errors.Is(err, nl.ErrReadOnly) && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	return host.SetIPv4(link.Attrs().Index, nl.RouteLocalnet, 1)
}

// now returns the sysctl's value.
func (l localNet) now(env *netstate.Env) (int32, error) {
	link, err := env.Link(netstate.Host, l.ifName)
	if err != nil {
		return 0, err
	}
	return env.Host.IPv4Setting(link.Attrs().Index, nl.RouteLocalnet)
}

// Diff checks the guard and the sysctl.
func (l localNet) Diff(ctx context.Context, env *netstate.Env) (string, error) {
	return netstate.Sentence(l.Lost(ctx, env))
}

// Lost checks the guard and the sysctl.
func (l localNet) Lost(ctx context.Context, env *netstate.Env) ([]netstate.Lost, error) {
	v, err := l.now(env)
	if err != nil {
		return nil, err
	}
	if v != 1 {
		text := fmt.Sprintf("sysctl %s is %d instead of 1", l.key(), v)
		if l.k.Records.Holds(l.fact().Name, l.owner) {
			text += " (run patchbay repair)"
		}
		return []netstate.Lost{{Detail: text}}, nil
	}
	return l.fact().Lost(ctx, env)
}

// A container may send a packet to its own published port. With br_netfilter the packet is
// translated within the bridge. The bridge must then send the packet out through the port where
// it came in. A bridge does so only in hairpin mode. Without br_netfilter the packet is routed
// and needs no hairpin mode.

// findPort finds the bridge's port that belongs to the container, among the interfaces of
// prevResult. If the port is in hairpin mode or does not need it, findPort returns "".
func findPort(r *plugin.Request, env *netstate.Env, bridge netlink.Link) (name string, err error) {
	if bridge.Type() != "bridge" {
		return "", nil
	}
	for _, i := range r.Prev().Interfaces {
		if i.Sandbox != "" || i.Name == bridge.Attrs().Name {
			continue
		}
		link, err := env.Link(netstate.Host, i.Name)
		switch {
		case err != nil && !nl.IsNotFound(err):
			return "", err
		case err == nil && link.Attrs().MasterIndex == bridge.Attrs().Index:
			return lacksHairpin(env, link), nil
		}
	}
	return "", nil
}

// lacksHairpin returns the port's name if hairpin mode is off but needed. The port's flag takes
// less time to read than the sysctls.
func lacksHairpin(env *netstate.Env, port netlink.Link) string {
	flags, err := env.Host.PortFlags(port.Attrs().Index)
	if err == nil && flags.Hairpin || !bridgeNetfilter(env) {
		return ""
	}
	return port.Attrs().Name
}

// bridgeNetfilter reports whether bridged frames pass the IP firewall. The sysctls do not
// exist before the module br_netfilter is loaded.
func bridgeNetfilter(env *netstate.Env) bool {
	for _, key := range [...]string{"net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"} {
		if v, err := env.Host.Sysctl(key); err == nil && v != "0" {
			return true
		}
	}
	return false
}

// hairpinPort lets a bridge send a frame back through the port it came from. The kernel
// deletes the setting with the link.
type hairpinPort struct{ link string }

// String returns the ip command that sets hairpin mode.
func (h hairpinPort) String() string {
	return "host: ip link set " + h.link + " type bridge_slave hairpin on"
}

// Ensure sets hairpin mode.
func (h hairpinPort) Ensure(_ context.Context, env *netstate.Env) (netstate.Undo, error) {
	link, err := env.Link(netstate.Host, h.link)
	if err != nil {
		return nil, err
	}
	flags, err := env.Host.PortFlags(link.Attrs().Index)
	if err != nil || flags.Hairpin {
		return nil, err
	}
	if err := env.Host.LinkSetHairpin(link, true); err != nil {
		return nil, fmt.Errorf("set hairpin mode of %s: %w", h.link, err)
	}
	return func(context.Context) error {
		if err := env.Host.LinkSetHairpin(link, false); err != nil && !nl.IsNotFound(err) {
			return fmt.Errorf("undo hairpin mode of %s: %w", h.link, err)
		}
		return nil
	}, nil
}

// Diff reports whether hairpin mode is off.
func (h hairpinPort) Diff(_ context.Context, env *netstate.Env) (string, error) {
	link, err := env.Link(netstate.Host, h.link)
	if err != nil {
		return "", err
	}
	flags, err := env.Host.PortFlags(link.Attrs().Index)
	if err != nil || flags.Hairpin {
		return "", err
	}
	return "hairpin mode of " + h.link + " is off", nil
}
