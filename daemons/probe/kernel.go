// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/nl"
)

// sysctl returns a number, or 0 if there is none.
func (p *place) sysctl(key string) int {
	text, err := p.conn.Sysctl(key)
	if err != nil {
		return 0
	}
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		return 0
	}
	return n
}

// neigh returns the neighbour entry of an address.
func (p *place) neigh(link int, a netip.Addr) (n netlink.Neigh, ok bool) {
	list, err := p.conn.NeighList(link, familyOf(a))
	if err != nil {
		return n, false
	}
	i := slices.IndexFunc(list, func(n netlink.Neigh) bool { return nl.AddrOf(n.IP) == a })
	if i < 0 {
		return n, false
	}
	return list[i], true
}

// linkOf returns the link that has an address, or nil.
func (p *place) linkOf(a netip.Addr) netlink.Link {
	links, err := p.conn.LinkList()
	if err != nil {
		return nil
	}
	i := slices.IndexFunc(links, func(l netlink.Link) bool {
		addrs, err := p.conn.Addrs(l.Attrs().Index)
		return err == nil && slices.ContainsFunc(addrs, func(x nl.Addr) bool { return x.Prefix.Addr().Unmap() == a })
	})
	if i < 0 {
		return nil
	}
	return links[i]
}

// onLink reports whether an address is in a subnet of a link.
func (p *place) onLink(index int, a netip.Addr) bool {
	addrs, err := p.conn.Addrs(index)
	return err == nil && slices.ContainsFunc(addrs, func(x nl.Addr) bool { return x.Prefix.Masked().Contains(a) })
}

// mtu returns the MTU of a link.
func (v *view) mtu(index int) int {
	l, err := v.at.conn.LinkAt(index)
	if err != nil {
		return 1 << 16
	}
	return l.Attrs().MTU
}

// listeners returns the addresses at which something listens on a port, although not for this packet.
func (p *place) listeners(protocol l4.Protocol, port uint16) (addrs []string) {
	name := map[l4.Protocol]string{l4.TCP: "tcp", l4.UDP: "udp"}[protocol]
	if name == "" {
		return nil
	}
	var files []byte
	_ = p.conn.Do(func() error { // without it, the finding has less text
		for _, f := range []string{name, name + "6"} {
			b, err := os.ReadFile("/proc/thread-self/net/" + f)
			if err == nil {
				files = append(files, b...)
			}
		}
		return nil
	})
	for line := range strings.Lines(string(files)) {
		w := strings.Fields(line)
		if len(w) < 4 || protocol == l4.TCP && w[3] != "0A" {
			continue
		}
		at, number, _ := strings.Cut(w[1], ":")
		if n, err := strconv.ParseUint(number, 16, 16); err == nil && uint16(n) == port {
			addrs = append(addrs, procAddr(at))
		}
	}
	return addrs
}

// procAddr returns an address as /proc/net/tcp writes it: words in the machine's byte order.
func procAddr(text string) string {
	b, err := hex.DecodeString(text)
	if err != nil || len(b)%4 != 0 {
		return text
	}
	for i := 0; i < len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	a, _ := netip.AddrFromSlice(b)
	return a.Unmap().String()
}

// icmpText says in words what an ICMP error says (RFC 792, RFC 1812, RFC 4443).
func icmpText(v6 bool, icmp [2]byte) string {
	typ, code := icmp[0], int(icmp[1])
	unreachable := []string{"network unreachable", "host unreachable", "protocol unreachable", "port unreachable", "too long for a link (fragmentation needed)"}
	if v6 {
		unreachable = []string{"no route", "prohibited", "beyond the scope of the source", "address unreachable", "port unreachable", "source refused", "route refused"}
	}
	switch {
	case (v6 && typ == 1 || !v6 && typ == 3) && code < len(unreachable):
		return unreachable[code]
	case !v6 && typ == 3 && (code == 9 || code == 10 || code == 13):
		return "prohibited by an administrator"
	case v6 && typ == 2:
		return "too long for a link (packet too big)"
	case !v6 && typ == 11 || v6 && typ == 3:
		return "time to live exceeded"
	}
	return fmt.Sprintf("ICMP type %d code %d", typ, code)
}
