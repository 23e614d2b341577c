// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"fmt"
	"net/netip"

	vnl "github.com/vishvananda/netlink/nl"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Addr is an address of a link. Flags are IFA_F_*.
type Addr struct {
	Prefix netip.Prefix
	Flags  uint32
}

// Addrs lists the addresses of one link. Unlike Handle.AddrList it does not
// make the kernel walk all links: the index is in the request, which Linux
// >= 4.20 honours on a socket with NETLINK_GET_STRICT_CHK.
func (c *Conn) Addrs(index int) ([]Addr, error) {
	if err := c.dialStrict(); err != nil {
		return nil, err
	}
	addrs, err := Retry(func() ([]Addr, error) { return c.dumpAddrs(index) })
	if err != nil {
		return nil, fmt.Errorf("list addresses of link %d: %w", index, err)
	}
	return addrs, nil
}

// dialStrict opens the socket for requests the library cannot express.
func (c *Conn) dialStrict() error {
	if c.strict != nil {
		return nil
	}
	ns := vnetns.None()
	if c.NS != nil {
		ns = vnetns.NsHandle(c.NS.Fd())
	}
	s, err := vnl.GetNetlinkSocketAt(ns, vnetns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink socket: %w", err)
	}
	// An older kernel refuses the option and sends all addresses.
	_ = unix.SetsockoptInt(s.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	c.strict = &vnl.SocketHandle{Socket: s}
	return nil
}

func (c *Conn) dumpAddrs(index int) ([]Addr, error) {
	req := vnl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
	req.Sockets = map[int]*vnl.SocketHandle{unix.NETLINK_ROUTE: c.strict}
	head := vnl.NewIfAddrmsg(unix.AF_UNSPEC)
	head.Index = uint32(index)
	req.AddData(head)
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWADDR)
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
	attrs, err := vnl.ParseRouteAttr(m[head.Len():])
	if err != nil {
		return Addr{}, fmt.Errorf("decode address: %w", err)
	}
	out := Addr{Flags: uint32(head.Flags)}
	var ip []byte
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.IFA_LOCAL:
			ip = a.Value
		case unix.IFA_ADDRESS:
			if ip == nil {
				ip = a.Value
			}
		case unix.IFA_FLAGS:
			if len(a.Value) == 4 {
				out.Flags = vnl.NativeEndian().Uint32(a.Value)
			}
		}
	}
	addr, ok := netip.AddrFromSlice(ip)
	if !ok {
		return Addr{}, fmt.Errorf("decode address: %d bytes", len(ip))
	}
	out.Prefix = netip.PrefixFrom(addr, int(head.Prefixlen))
	return out, nil
}
