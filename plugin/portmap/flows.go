// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/conntrack"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
)

// As long as packets follow, a UDP flow goes where its first packet went. A port that is
// published or removed does not change that. So this file deletes such flows. TCP connections end
// by themselves; like the reference, we leave them alone.

// udpMapping is a published UDP port, read from an element of a map.
type udpMapping struct {
	host netip.Addr // not valid for every local address
	port uint16
	to   netip.AddrPort
}

// udpMappings reads mappings from elements. An element's key is [address . ] protocol . port,
// its data is address . port. Each field is padded to four bytes.
func udpMappings(elems []nft.Element) (out []udpMapping) {
	for _, e := range elems {
		to, ok := e.Container()
		fixed := len(e.Key) - 8
		if !ok || !isPortMap(e.Set) || fixed < 0 || e.Key[fixed] != unix.IPPROTO_UDP {
			continue
		}
		m := udpMapping{
			port: binary.BigEndian.Uint16(e.Key[fixed+4:]),
			to:   netip.AddrPortFrom(to, binary.BigEndian.Uint16(e.Data[len(e.Data)-4:])),
		}
		m.host, _ = netip.AddrFromSlice(e.Key[:fixed]) // the zero Addr if the key has no address
		out = append(out, m)
	}
	return out
}

func isPortMap(set string) bool {
	kind, _, _ := strings.Cut(set, "_")
	return kind == nft.SetPorts4 || kind == nft.SetPorts6 || kind == nft.SetHostPorts4 || kind == nft.SetHostPorts6
}

// To list flows, the kernel reads its whole hash table. With the usual 262,144 buckets this takes
// 11 ms, even if there are few flows. So we list the flows once for each family. The reference
// does so for each mapping.

// stale reports whether a flow to a mapping's port must be deleted.
type stale func(udpMapping, conntrack.Flow) (bool, error)

// flushAfterCommit deletes UDP flows after the ports are published: flows to these ports that go
// elsewhere, and flows to ports of an earlier ADD that rec no longer names. An ADD that fails deletes
// none: the ports may be another container's. If the deletion fails, flushAfterCommit only warns, like the
// reference.
func flushAfterCommit(r *plugin.Request, k *kernel.Kernel, p *plan, rec *record.Record) {
	fresh, before := udpMappings(p.ports()), udpMappings(rec.Elements)
	if len(before) == 0 || r.Session.Dry != nil {
		return
	}
	k.AfterCommit(r, func() {
		if len(fresh) > 0 {
			forget(r, k, fresh, astray(k))
		}
		now := make(map[udpMapping]bool)
		for _, m := range udpMappings(rec.Elements) {
			now[m] = true
		}
		gone := slices.DeleteFunc(before, func(m udpMapping) bool { return now[m] })
		if len(gone) > 0 {
			forgetFlows(r, k, gone)
		}
	})
}

// forgetFlows deletes the UDP flows that go to a container through its mappings.
func forgetFlows(r *plugin.Request, k *kernel.Kernel, gone []udpMapping) {
	forget(r, k, gone, func(m udpMapping, f conntrack.Flow) (bool, error) { return f.Reply.Src == m.to, nil })
}

// forget deletes the flows that the function is selects. The socket is closed at the end of the
// session; see conntrack.Conn.Close.
func forget(r *plugin.Request, k *kernel.Kernel, ms []udpMapping, is stale) {
	if host, err := k.Host(); err == nil {
		if n, err := host.Sysctl("net/netfilter/nf_conntrack_count"); err == nil && n == "0" {
			return
		}
	}
	c, err := conntrack.Dial()
	if err != nil {
		kernel.Warn(r, err)
		return
	}
	r.Session.OnClose(func() { c.Close() }) //nolint:errcheck // nothing to lose
	v6 := func(m udpMapping) bool { return m.to.Addr().Is6() }
	err4 := forgetFamily(c, slices.DeleteFunc(slices.Clone(ms), v6), is)
	err6 := forgetFamily(c, slices.DeleteFunc(slices.Clone(ms), func(m udpMapping) bool { return !v6(m) }), is)
	if err := errors.Join(err4, err6); err != nil {
		kernel.Warn(r, fmt.Errorf("forget stale UDP flows: %w", err))
	}
}

// forgetFamily does the work of forget for one address family. For a single port the kernel
// filters the flows by port; for several ports it filters only by UDP.
func forgetFamily(c *conntrack.Conn, ms []udpMapping, is stale) error {
	if len(ms) == 0 {
		return nil
	}
	filter := conntrack.Filter{IPv6: ms[0].to.Addr().Is6(), Protocol: unix.IPPROTO_UDP}
	if len(ms) == 1 {
		filter.OrigDst, filter.OrigDstPort = ms[0].host, ms[0].port
	}
	flows, err := c.List(filter)
	errs := []error{err}
	byPort := make(map[uint16][]udpMapping, len(ms))
	for _, m := range ms {
		byPort[m.port] = append(byPort[m.port], m)
	}
	for _, f := range flows {
		for _, m := range byPort[f.Orig.Dst.Port()] {
			if m.host.IsValid() && m.host != f.Orig.Dst.Addr() {
				continue
			}
			yes, err := is(m, f)
			if yes {
				err = c.Delete(f)
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// astray finds flows to a published port that go elsewhere: to a process on the host, or to a
// container that had the port before. It leaves out flows that the host only forwards to the same
// port of another address.
func astray(k *kernel.Kernel) stale {
	type place struct {
		dst  netip.Addr
		port uint16
	}
	concerned := make(map[place]bool)
	return func(m udpMapping, f conntrack.Flow) (bool, error) {
		if f.Reply.Src == m.to {
			return false, nil
		}
		if m.host.IsValid() {
			return true, nil
		}
		at := place{f.Orig.Dst.Addr(), m.port}
		yes, known := concerned[at]
		if known {
			return yes, nil
		}
		yes, err := m.concerns(k, at.dst)
		concerned[at] = yes
		return yes, err
	}
}

// concerns reports whether a mapping for all addresses applies to packets to dst. It applies if
// dst is an address of the host and no other mapping names dst.
func (m udpMapping) concerns(k *kernel.Kernel, dst netip.Addr) (bool, error) {
	host, err := k.Host()
	if err != nil {
		return false, err
	}
	_, kind, err := host.RouteTo(dst)
	if err != nil && !nl.IsNoRoute(err) {
		return false, err
	}
	if err != nil || kind != unix.RTN_LOCAL {
		return false, nil
	}
	set := nft.SetHostPorts4
	if dst.Is6() {
		set = nft.SetHostPorts6
	}
	_, other, err := k.NFT.Get(set, nft.AddrProtoPort(dst, unix.IPPROTO_UDP, m.port))
	return !other, err
}
