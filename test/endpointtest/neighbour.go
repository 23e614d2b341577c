// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package endpointtest

import (
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/test/nettest/node"
)

// Misled gives a space neighbour entries for addresses, behind one of its links, with an
// unused Ethernet address.
func (w *World) Misled(s *node.Space, link string, addrs ...string) {
	w.Helper()
	l, err := s.Conn().Link(link)
	Must(w, err)
	for _, a := range addrs {
		Must(w, s.Conn().NeighSet(&netlink.Neigh{
			LinkIndex: l.Attrs().Index, IP: netip.MustParseAddr(a).AsSlice(),
			HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 0x66}, State: netlink.NUD_STALE,
		}))
	}
}

// AtOnce expects that a pod is reached without waiting until its neighbours correct their
// entries by themselves, which takes 5 s and more.
func (w *World) AtOnce(from *node.Space, p *Pod, want ...string) {
	w.Helper()
	for n := range p.Result.IPs {
		to := Join(p.IP(n), "80")
		p.Serve("udp", to)
		start := time.Now()
		w.Want(to, from.Ask("udp", to), p.Name+" "+want[n])
		if took := time.Since(start); took > 4*time.Second {
			w.Errorf("%s answered after %v", to, took)
		}
	}
}
