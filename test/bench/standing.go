// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
)

// The bridge floods a broadcast to all its ports: one packet for each of them. All of these packets
// wait in one queue of the CPU, which all namespaces of the machine share. The queue takes only
// net.core.netdev_max_backlog packets, by default 1,000, and the kernel drops the rest. So a
// container's ARP request on a bridge with more than 1,000 other ports gets no answer: the gateway's
// reply comes behind the flood. And what the containers of one node send to all others delays, or
// loses, packets of all nodes. Therefore nobody in this experiment sends to all while the rates are
// measured: the nodes and containers have no IPv6, and those with traffic know their neighbours.

// benchBridge is the bridge of the chains "full", "full-nft" and "full-one".
const benchBridge = "bench0"

// stand attaches n containers without IPv6.
func (w *worker) stand(chain string, n int) error {
	if err := disableIPv6(); err != nil {
		return err
	}
	for i := range n {
		if _, err := quietSandbox(grown(chain, i)); err != nil {
			return err
		}
	}
	_, err := w.grow(chain, n)
	return err
}

// quietSandbox returns the path of a container namespace without IPv6. With IPv6 the kernel sends
// multicasts when a link comes up, and repeats its router solicitations without end.
func quietSandbox(name string) (string, error) {
	path, err := sandbox(name)
	if err != nil {
		return "", err
	}
	return path, inSandbox(name, disableIPv6)
}

func disableIPv6() error {
	return os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0)
}

// place is a link with an IPv4 address on the bridge.
type place struct {
	sandbox, link string // if sandbox is empty, the link is the node's
	addr          net.IP
	mac           net.HardwareAddr
}

// acquaint gives the node, the client and the server fixed entries of each other, so that none of
// them sends an ARP request.
func acquaint() error {
	places := []*place{{link: benchBridge}, {sandbox: "client", link: "eth0"}, {sandbox: "server", link: "eth0"}}
	for _, p := range places {
		if err := p.visit(p.look); err != nil {
			return fmt.Errorf("look at %s %s: %w", p.sandbox, p.link, err)
		}
	}
	for _, p := range places {
		if err := p.visit(func() error { return p.learn(places) }); err != nil {
			return fmt.Errorf("set the neighbours of %s %s: %w", p.sandbox, p.link, err)
		}
	}
	return nil
}

// visit runs f in the namespace of the place.
func (p *place) visit(f func() error) error {
	if p.sandbox == "" {
		return f()
	}
	return inSandbox(p.sandbox, f)
}

// look reads the addresses of the link.
func (p *place) look() error {
	link, err := netlink.LinkByName(p.link)
	if err != nil {
		return err
	}
	addrs, err := nl.Retry(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_V4) })
	if err != nil {
		return err
	}
	if len(addrs) != 1 {
		return fmt.Errorf("%d IPv4 addresses instead of one", len(addrs))
	}
	p.addr, p.mac = addrs[0].IP, link.Attrs().HardwareAddr
	return nil
}

// learn makes the entries of the other places.
func (p *place) learn(places []*place) error {
	link, err := netlink.LinkByName(p.link)
	if err != nil {
		return err
	}
	for _, other := range places {
		entry := &netlink.Neigh{LinkIndex: link.Attrs().Index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT, IP: other.addr, HardwareAddr: other.mac}
		if other == p {
			continue
		}
		if err := netlink.NeighSet(entry); err != nil {
			return err
		}
	}
	return nil
}
