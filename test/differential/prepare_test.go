// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
)

func attrs(name, mac string) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name = name
	a.HardwareAddr, _ = net.ParseMAC(mac)
	return a
}

// attached makes what a first plugin leaves to a chained one: eth0 in the container, its peer on
// a bridge of the host, addresses and default routes. It returns the first plugin's result.
func attached(w *world) (map[string]any, error) {
	err := first(
		func() error {
			return addLink(&netlink.Bridge{LinkAttrs: attrs("br0", "02:00:00:00:00:01")}, "10.1.0.1/16", "fd00:1::1/64")
		},
		func() error {
			v := &netlink.Veth{LinkAttrs: attrs("vethhost", "02:00:00:00:00:02"), PeerName: "eth0", PeerNamespace: netlink.NsFd(w.container)}
			v.PeerHardwareAddr, _ = net.ParseMAC("02:00:00:00:00:05")
			return addLink(v)
		},
		func() error { return enslave("vethhost", "br0") },
		func() error {
			return w.enter(w.container, func() error {
				return first(func() error { return configure("eth0", "10.1.0.5/16", "fd00:1::5/64") },
					func() error { return addRoutes("eth0", "10.1.0.1", "fd00:1::1") })
			})
		},
	)
	return obj{
		"interfaces": list{
			obj{"name": "br0", "mac": "02:00:00:00:00:01"}, obj{"name": "vethhost", "mac": "02:00:00:00:00:02"},
			obj{"name": "eth0", "mac": "02:00:00:00:00:05", "sandbox": containerNS},
		},
		"ips": list{
			obj{"address": "10.1.0.5/16", "gateway": "10.1.0.1", "interface": 2}, obj{"address": "fd00:1::5/64", "gateway": "fd00:1::1", "interface": 2},
		},
		"routes": list{obj{"dst": "0.0.0.0/0"}, obj{"dst": "::/0", "gw": "fd00:1::1"}},
		"dns":    obj{"nameservers": list{"192.0.2.53"}},
	}, err
}

// uplinked makes the host's uplink with a default route. It also makes a second device, spare,
// which nothing uses.
func uplinked(*world) (map[string]any, error) {
	return nil, first(
		func() error { return pair("uplink", "02:00:00:00:01:01", "192.0.2.1/24", "2001:db8::1/64") },
		func() error { return pair("spare", "02:00:00:00:01:02") },
		func() error { return addRoutes("uplink", "192.0.2.254", "2001:db8::fe") },
	)
}

// everywhere makes uplink and spare in the container too, for links on a master there.
func everywhere(w *world) (map[string]any, error) {
	if _, err := uplinked(w); err != nil {
		return nil, err
	}
	return nil, w.enter(w.container, func() error { _, err := uplinked(w); return err })
}

// first runs steps until one fails.
func first(steps ...func() error) error {
	for i, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
	}
	return nil
}

// pair makes a veth pair and sets both ends up. Only the first end is used.
func pair(name, mac string, addrs ...string) error {
	v := &netlink.Veth{LinkAttrs: attrs(name, mac), PeerName: name + "-peer"}
	v.PeerHardwareAddr, _ = net.ParseMAC(mac[:len(mac)-2] + "f" + mac[len(mac)-1:])
	if err := addLink(v, addrs...); err != nil {
		return err
	}
	return configure(name + "-peer")
}

func addLink(l netlink.Link, addrs ...string) error {
	if err := netlink.LinkAdd(l); err != nil {
		return err
	}
	return configure(l.Attrs().Name, addrs...)
}

// configure gives a link addresses and sets it up.
func configure(name string, addrs ...string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	for _, a := range addrs {
		addr, err := netlink.ParseAddr(a)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(l, addr); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(l)
}

func enslave(name, bridge string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	m, err := netlink.LinkByName(bridge)
	if err != nil {
		return err
	}
	return netlink.LinkSetMaster(l, m)
}

// addRoutes adds default routes over a link.
func addRoutes(name string, gateways ...string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	for _, gw := range gateways {
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: net.ParseIP(gw)}); err != nil {
			return err
		}
	}
	return nil
}
