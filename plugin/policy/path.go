// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// judge notes to which addresses policies apply, and the link or the port of a bridge from which they send. It fails if they cannot apply: there is no
// address, or packets do not pass the host's forward hook. A policy that silently has no effect would
// be worse than a pod that does not start. judge returns the bridges through which the pod's packets go.
func judge(r *plugin.Request, env *netstate.Env, pod *record.Policed) (bridges []string, err error) {
	if err := plugin.CheckPrefixes(r.Prev()); err != nil {
		return nil, err
	}
	pod.Addrs = addressesOf(r.Prev())
	if len(pod.Addrs) == 0 {
		return nil, spec.Invalid("network policies apply to addresses, and the previous plugin assigned none: use ipam, or remove policy from the chain")
	}
	return forwards(r, env, pod)
}

func addressesOf(result *spec.Result) (addrs []netip.Addr) {
	for _, ip := range result.IPs {
		addrs = append(addrs, ip.Address.Addr().Unmap())
	}
	return addrs
}

// forwards returns an error unless packets of the container pass the forward hook.
func forwards(r *plugin.Request, env *netstate.Env, pod *record.Policed) (bridges []string, err error) {
	var onHost bool
	if bridges, onHost, err = ends(r, env, pod); err != nil {
		return nil, err
	}
	for _, bridge := range bridges {
		if err := bridgeForwards(r, bridge, pod.Addrs); err != nil {
			return nil, err
		}
	}
	if !onHost {
		return nil, spec.Invalid("network policies cannot apply: the result of the previous plugin has no interface on the host, so packets do not pass the host's forward hook, as with macvlan or ipvlan: use ptp or bridge")
	}
	return bridges, noFastPath(r, bridges)
}

// ends notes the link or the port of a bridge from which a container sends, and returns the bridges of its ports.
func ends(r *plugin.Request, env *netstate.Env, pod *record.Policed) (bridges []string, onHost bool, err error) {
	var own, ports []string
	for _, i := range r.Prev().Interfaces {
		if i.Sandbox != "" {
			continue
		}
		link, err := hostLink(r, env, i.Name)
		if err != nil {
			return nil, false, err
		}
		bridge, err := bridgeOf(env, link)
		if err != nil {
			return nil, false, err
		}
		if bridge != nil {
			name := bridge.Attrs().Name
			if bridges = append(bridges, name); link.Type() == "veth" {
				ports = append(ports, i.Name)
				warnTags(r, env, bridge, link)
			}
		} else if link != nil && link.Type() == "veth" { // another plugin may have added an ifb
			own = append(own, i.Name)
		}
		onHost = true
	}
	if len(own) == 1 {
		pod.Link = own[0]
	}
	if len(ports) == 1 {
		pod.Port = ports[0]
	}
	return bridges, onHost, nil
}

// noFastPath returns an error if a bridge has the fast path of the plugin firewall.
func noFastPath(r *plugin.Request, bridges []string) error {
	for _, bridge := range bridges {
		if kernel.Of(r).Records.HasHolder(record.FastPathFact(bridge)) {
			return spec.Invalid("network policies cannot apply on bridge %s: packets of its established connections take the fast path around the forward hook: remove fastPath from the plugin firewall", bridge)
		}
	}
	return nil
}

// hostLink returns a link of the host. While an ADD is only explained, there may be no link yet.
func hostLink(r *plugin.Request, env *netstate.Env, name string) (netlink.Link, error) {
	link, err := env.Link(netstate.Host, name)
	if nl.IsNotFound(err) && r.Session.Dry != nil {
		return nil, nil
	}
	if err != nil {
		return nil, spec.Errorf(spec.CodeInternal, "look whether packets of %s pass the forward hook: %w", name, err)
	}
	return link, nil
}

// bridgeOf returns a link of the host if it is a bridge, the bridge of which it is a port, or nil.
func bridgeOf(env *netstate.Env, link netlink.Link) (netlink.Link, error) {
	switch {
	case link == nil:
		return nil, nil
	case link.Type() == "bridge":
		return link, nil
	case link.Attrs().MasterIndex == 0:
		return nil, nil
	}
	master, err := env.Host.LinkAt(link.Attrs().MasterIndex)
	if err != nil || master.Type() != "bridge" {
		return nil, err
	}
	return master, nil
}

// warnTags warns about tagged VLANs of a port: they have no use, because a checked port sends and gets no frames
// with a tag.
func warnTags(r *plugin.Request, env *netstate.Env, bridge, port netlink.Link) {
	tagged, err := netstate.Tagged(env.Host, bridge, port)
	if tagged {
		err = errors.New("port " + port.Attrs().Name + " of bridge " + bridge.Attrs().Name +
			" has tagged VLANs, and the plugin policy drops frames with a tag: remove vlanTrunk from the plugin bridge, or policy from the chain")
	}
	if err != nil {
		kernel.Warn(r, err)
	}
}

// bridgeForwards returns an error unless frames between two ports of a bridge pass the forward hook.
func bridgeForwards(r *plugin.Request, bridge string, addrs []netip.Addr) error {
	for _, a := range addrs {
		key := "bridge-nf-call-iptables"
		if a.Is6() {
			key = "bridge-nf-call-ip6tables"
		}
		on, err := os.ReadFile(filepath.Join(r.Session.Paths.Proc, "sys/net/bridge", key))
		if err != nil || string(bytes.TrimSpace(on)) != "1" {
			return spec.Errorf(spec.CodeInvalidConfig, "network policies cannot apply between containers on bridge %s, because its frames do not pass the forward hook: "+
				"run `modprobe br_netfilter` and `sysctl -w net.bridge.%s=1`, at each boot, or use ptp", bridge, key)
		}
	}
	return nil
}
