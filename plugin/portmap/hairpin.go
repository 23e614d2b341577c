// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"context"
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/plugin"
)

// With br_netfilter a packet to a published port of its own sender is translated within the
// bridge, which then must send it out through the port where it came in: hairpin mode (pain
// 20). Without br_netfilter the packet is routed and needs nothing.

// findPort finds the port of bridge that belongs to the container, among the
// interfaces of prevResult, when hairpin mode matters.
func findPort(r *plugin.Request, env *netstate.Env, bridge netlink.Link) string {
	if bridge.Type() != "bridge" || !bridgeNetfilter(env) {
		return ""
	}
	for _, i := range r.Prev().Interfaces {
		if i.Sandbox != "" || i.Name == bridge.Attrs().Name {
			continue
		}
		link, err := env.Link(netstate.Host, i.Name)
		if err == nil && link.Attrs().MasterIndex == bridge.Attrs().Index {
			return i.Name
		}
	}
	return ""
}

// bridgeNetfilter reports whether bridged frames pass the IP firewall. The keys
// are missing until the module br_netfilter is loaded.
func bridgeNetfilter(env *netstate.Env) bool {
	for _, key := range [...]string{"net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"} {
		if v, err := env.Host.Sysctl(key); err == nil && v != "0" {
			return true
		}
	}
	return false
}

// hairpinPort lets a bridge send a frame back through the port it came from. The setting is
// deleted with the link.
type hairpinPort struct{ link string }

// String is the ip command.
func (h hairpinPort) String() string {
	return "host: ip link set " + h.link + " type bridge_slave hairpin on"
}

// Ensure sets the mode.
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

// Diff reads the mode.
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
