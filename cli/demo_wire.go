// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
)

// The link between the demo's host and its outside world has addresses reserved for
// documentation (RFC 5737, RFC 3849). The world has no route to the containers: it can
// only answer masqueraded packets.
const (
	uplinkName = "uplink"
	uplink4    = "198.51.100.1/24"
	uplink6    = "2001:db8:77::1/64"
	world4     = "198.51.100.2/24"
	world6     = "2001:db8:77::2/64"
)

// uplink connects the host to the world.
func (d *demo) uplink() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = uplinkName
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(d.world.ns.Fd())}
	if err := d.host.LinkAdd(veth); err != nil {
		return fmt.Errorf("make uplink: %w", err)
	}
	if err := d.wire(d.host, uplinkName, d.family(uplink4, uplink6)); err != nil {
		return err
	}
	d.world.addrs = addrsOf(d.family(world4, world6))
	return d.wire(d.world.conn, "eth0", d.family(world4, world6))
}

// family omits IPv6 where the machine has none.
func (d *demo) family(v4, v6 string) []string {
	if hasIPv6(d.app.paths.Proc) {
		return []string{v4, v6}
	}
	return []string{v4}
}

func (d *demo) uplinkAddrs() []netip.Addr { return addrsOf(d.family(uplink4, uplink6)) }

func addrsOf(prefixes []string) (out []netip.Addr) {
	for _, p := range prefixes {
		out = append(out, netip.MustParsePrefix(p).Addr())
	}
	return out
}

// wire adds the addresses to a link, without waiting for duplicate detection.
func (d *demo) wire(c *nl.Conn, name string, prefixes []string) error {
	link, err := c.Link(name)
	if err != nil {
		return err
	}
	for _, p := range prefixes {
		addr, err := netlink.ParseAddr(p)
		if err != nil {
			return fmt.Errorf("parse %s: %w", p, err)
		}
		if addr.IP.To4() == nil {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := c.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("add %s to %s: %w", p, name, err)
		}
	}
	return setUp(c, name)
}

func setUp(c *nl.Conn, name string) error {
	link, err := c.Link(name)
	if err != nil {
		return err
	}
	if err := c.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}
