// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/conntrack"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/plugin"
)

// A UDP flow keeps going where its first packet went, published or not, while
// packets keep coming. TCP connections end by themselves; the reference leaves
// them alone, and so do we.

// udpMapping is a published UDP port, as an element of a map says it.
type udpMapping struct {
	host netip.Addr // invalid: every local address
	port uint16
	to   netip.AddrPort
}

// udpMappings picks them out of elements: [address . ] protocol . port, each
// field padded to four bytes, to address . port.
func udpMappings(elems []nft.Element) (out []udpMapping) {
	for _, e := range elems {
		to, ok := target(e)
		fixed := len(e.Key) - 8
		if !ok || !isPortMap(e.Set) || fixed < 0 || e.Key[fixed] != unix.IPPROTO_UDP {
			continue
		}
		m := udpMapping{
			port: binary.BigEndian.Uint16(e.Key[fixed+4:]),
			to:   netip.AddrPortFrom(to, binary.BigEndian.Uint16(e.Data[len(e.Data)-4:])),
		}
		m.host, _ = netip.AddrFromSlice(e.Key[:fixed]) // nothing there: the zero Addr
		out = append(out, m)
	}
	return out
}

func isPortMap(set string) bool {
	kind, _, _ := strings.Cut(set, "_")
	return kind == nft.SetPorts4 || kind == nft.SetPorts6 || kind == nft.SetHostPorts4 || kind == nft.SetHostPorts6
}

// flushAfterCommit forgets, once the ports are published, the UDP flows to them
// that go elsewhere. A failure is reported and survived, as by the reference.
func flushAfterCommit(r *plugin.Request, k *kernel.Kernel, p *plan) {
	fresh := udpMappings(p.ports())
	if len(fresh) == 0 || r.Session.Dry != nil {
		return
	}
	r.Session.OnFlush(func(context.Context) error {
		forget(r, fresh, func(c *conntrack.Conn, m udpMapping) ([]conntrack.Flow, error) { return astray(k, c, m) })
		return nil
	})
}

// forgetFlows forgets the UDP flows that go to a container by its mappings.
func forgetFlows(r *plugin.Request, gone []udpMapping) {
	forget(r, gone, func(c *conntrack.Conn, m udpMapping) ([]conntrack.Flow, error) {
		f := m.filter()
		f.ReplySrc, f.ReplySrcPort = m.to.Addr(), m.to.Port()
		return c.List(f)
	})
}

// forget deletes the flows that stale lists for each mapping. The socket is
// closed with the session, see conntrack.Conn.Close.
func forget(r *plugin.Request, ms []udpMapping, stale func(*conntrack.Conn, udpMapping) ([]conntrack.Flow, error)) {
	c, err := conntrack.Dial()
	if err != nil {
		kernel.Warn(r, err)
		return
	}
	r.Session.OnClose(func() { c.Close() }) //nolint:errcheck // nothing to lose
	var errs []error
	for _, m := range ms {
		flows, err := stale(c, m)
		errs = append(errs, err)
		for _, f := range flows {
			errs = append(errs, c.Delete(f))
		}
	}
	if err := errors.Join(errs...); err != nil {
		kernel.Warn(r, fmt.Errorf("forget stale UDP flows: %w", err))
	}
}

func (m udpMapping) filter() conntrack.Filter {
	return conntrack.Filter{IPv6: m.to.Addr().Is6(), Protocol: unix.IPPROTO_UDP, OrigDst: m.host, OrigDstPort: m.port}
}

// astray lists the flows to a published port that go elsewhere: to a process of
// the host, to a container that had the port before. Flows through the host to
// the same port of somebody else are none of ours.
func astray(k *kernel.Kernel, c *conntrack.Conn, m udpMapping) (out []conntrack.Flow, err error) {
	flows, err := c.List(m.filter())
	if err != nil {
		return nil, err
	}
	concerned := make(map[netip.Addr]bool)
	for _, f := range flows {
		dst := f.Orig.Dst.Addr()
		if f.Reply.Src == m.to {
			continue
		}
		yes, known := concerned[dst]
		if !known {
			if yes, err = m.concerns(k, dst); err != nil {
				return nil, err
			}
			concerned[dst] = yes
		}
		if yes {
			out = append(out, f)
		}
	}
	return out, nil
}

// concerns says whether packets to an address are this mapping's: the address
// is its own, or it is for all addresses, this is one of the host's, and no
// mapping is there for it alone.
func (m udpMapping) concerns(k *kernel.Kernel, dst netip.Addr) (bool, error) {
	if m.host.IsValid() {
		return true, nil // the kernel compared it
	}
	host, err := k.Host()
	if err != nil {
		return false, err
	}
	routes, err := host.RouteGet(dst.AsSlice())
	if err != nil && !nl.IsNotFound(err) {
		return false, fmt.Errorf("find route to %s: %w", dst, err)
	}
	if len(routes) == 0 || routes[0].Type != unix.RTN_LOCAL {
		return false, nil
	}
	set := nft.SetHostPorts4
	if dst.Is6() {
		set = nft.SetHostPorts6
	}
	_, other, err := k.NFT.Get(set, nft.AddrProtoPort(dst, unix.IPPROTO_UDP, m.port))
	return !other, err
}
