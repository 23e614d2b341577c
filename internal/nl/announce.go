// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Announce tells the neighbours on a shared segment where a link's addresses are now.
// Neighbours may still remember another host or an earlier container, and would send to it for
// minutes. By itself the kernel announces an address only once, when the link goes up, and
// often too early. A tentative address cannot be announced.
//
// For IPv4, Announce makes the container's kernel resolve the address as if a neighbour had it.
// The kernel broadcasts "who has 10.1.2.3, tell 10.1.2.3", which is a gratuitous ARP (RFC 5227,
// 3). It does so now and twice more, one second apart (mcast_solicit, retrans_time_ms), when the
// plugin has already ended. A packet socket could send the same packet, but closing it waits for
// RCU. On Linux 6.18 that takes 8-16 ms, as long as all other steps of an ADD together.
//
// For IPv6, Announce sends an unsolicited neighbour advertisement (RFC 4861, 7.2.6) through a raw
// ICMPv6 socket, which takes 0.03 ms to open and close.
func (c *Conn) Announce(link netlink.Link, addrs []netip.Addr) error {
	var errs []error
	var v6 []netip.Addr
	for _, a := range addrs {
		if a.Is4() {
			errs = append(errs, c.probeSelf(link, a))
		} else {
			v6 = append(v6, a)
		}
	}
	if len(v6) > 0 {
		errs = append(errs, c.Do(func() error { return advertise(link, v6) }))
	}
	return errors.Join(errs...)
}

// probeSelf makes the kernel probe its own address, even if the neighbour entry exists
// already. The entry remains in the neighbour table until the kernel needs the space. No
// packet uses it, because the address is local.
func (c *Conn) probeSelf(link netlink.Link, addr netip.Addr) error {
	err := c.NeighSet(&netlink.Neigh{
		LinkIndex: link.Attrs().Index, Family: unix.AF_INET, IP: addr.AsSlice(), Flags: netlink.NTF_USE,
	})
	if err != nil {
		return fmt.Errorf("announce %s on %s: %w", addr, link.Attrs().Name, err)
	}
	return nil
}

// advertise sends the IPv6 advertisements. advertise runs on a thread inside the namespace.
func advertise(link netlink.Link, addrs []netip.Addr) error {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
	if err != nil {
		return fmt.Errorf("open ICMPv6 socket: %w", os.NewSyscallError("socket", err))
	}
	defer unix.Close(fd)  //nolint:errcheck // nothing is buffered
	const mustBe255 = 255 // RFC 4861, 7.1.2: receivers drop forwarded advertisements
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, mustBe255); err != nil {
		return fmt.Errorf("set hop limit: %w", os.NewSyscallError("setsockopt", err))
	}
	index := link.Attrs().Index
	to := &unix.SockaddrInet6{ZoneId: uint32(index), Addr: netip.IPv6LinkLocalAllNodes().As16()}
	var errs []error
	for _, a := range addrs {
		from := unix.PktInfo6(&unix.Inet6Pktinfo{Addr: a.As16(), Ifindex: uint32(index)})
		if err := unix.Sendmsg(fd, advertisement(a, link.Attrs().HardwareAddr), from, to, 0); err != nil {
			errs = append(errs, fmt.Errorf("announce %s on %s: %w", a, link.Attrs().Name, os.NewSyscallError("sendmsg", err)))
		}
	}
	return errors.Join(errs...)
}

// advertisement returns an unsolicited neighbour advertisement that replaces the receivers'
// entries (RFC 4861, 4.4). The kernel adds the checksum. For a link without an Ethernet
// address it returns nil.
func advertisement(addr netip.Addr, mac net.HardwareAddr) []byte {
	const (
		neighbourAdvertisement = 136
		override               = 1 << 5
		targetLinkAddress      = 2
	)
	b := []byte{neighbourAdvertisement, 0, 0, 0, override, 0, 0, 0}
	b = append(b, addr.AsSlice()...)
	if len(mac) == 6 {
		b = append(b, targetLinkAddress, 1) // length in units of 8 bytes
		b = append(b, mac...)
	}
	return b
}
