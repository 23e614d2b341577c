// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Addr is an address of a link. Flags are IFA_F_*.
type Addr struct {
	Prefix netip.Prefix
	Flags  uint32
}

// Addrs lists the addresses of one link. Unlike Handle.AddrList it does not
// make the kernel walk all links: the index is in the request.
func (c *Conn) Addrs(index int) ([]Addr, error) {
	addrs, err := Retry(func() ([]Addr, error) { return c.dumpAddrs(index) })
	if err != nil {
		return nil, fmt.Errorf("list addresses of link %d: %w", index, err)
	}
	return addrs, nil
}

func (c *Conn) dumpAddrs(index int) ([]Addr, error) {
	head := vnl.NewIfAddrmsg(unix.AF_UNSPEC)
	head.Index = uint32(index)
	msgs, err := c.request(unix.RTM_GETADDR, unix.NLM_F_DUMP, unix.RTM_NEWADDR, head)
	if err != nil {
		return nil, err
	}
	var addrs []Addr
	for _, m := range msgs {
		if int(vnl.DeserializeIfAddrmsg(m).Index) != index {
			continue
		}
		a, err := parseAddr(m)
		if err != nil {
			return nil, err
		}
		addrs = append(addrs, a)
	}
	return addrs, nil
}

// parseAddr reads one RTM_NEWADDR. IFA_LOCAL is the link's own address where
// there is a peer (IFA_ADDRESS) as well.
func parseAddr(m []byte) (Addr, error) {
	head := vnl.DeserializeIfAddrmsg(m)
	out := Addr{Flags: uint32(head.Flags)}
	var ip []byte
	for kind, value := range attributes(m[head.Len():]) {
		switch {
		case kind == unix.IFA_LOCAL, kind == unix.IFA_ADDRESS && ip == nil:
			ip = value
		case kind == unix.IFA_FLAGS && len(value) == 4:
			out.Flags = vnl.NativeEndian().Uint32(value)
		}
	}
	addr, ok := netip.AddrFromSlice(ip)
	if !ok {
		return Addr{}, fmt.Errorf("decode address: %d bytes", len(ip))
	}
	out.Prefix = netip.PrefixFrom(addr, int(head.Prefixlen))
	return out, nil
}

// HasNeighbour reports whether a link has an entry for an address in its neighbour
// table, in whatever state.
func (c *Conn) HasNeighbour(index int, addr netip.Addr) (bool, error) {
	family := unix.AF_INET
	if addr.Is6() {
		family = unix.AF_INET6
	}
	head := &netlink.Ndmsg{Family: uint8(family), Index: uint32(index)}
	_, err := c.request(unix.RTM_GETNEIGH, unix.NLM_F_ACK, 0, head, attr(unix.NDA_DST, addr.AsSlice()))
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look up neighbour %s: %w", addr, err)
	}
	return true, nil
}
