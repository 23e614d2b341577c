// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/mesh/wirekey"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/wire"
)

// wireHost is a host in its own namespace, with an agent and a mesh. Its containers are addresses on lo.
type wireHost struct {
	*host
	*wire.Host
	mesh *mesh.Mesh
	mute bool // it has no WireGuard

	applied atomic.Pointer[mesh.Self] // with the last Apply
}

func newWireHost(t *testing.T, s store.Store, number int) *wireHost {
	t.Helper()
	h := &wireHost{host: newHost(t, s, number), Host: wire.New(t, number)}
	h.real = h
	where := paths.Paths{State: h.dir + "/state", Run: h.dir + "/run", Proc: "/proc"}
	must(t, os.MkdirAll(where.Run, 0o755))
	must(t, h.Conn.Do(func() (err error) {
		h.mesh, err = mesh.Open(mesh.Options{
			Paths: where, Warn: func(err error) { t.Logf("host %d: %v", number, err) },
			MakeKeys: func(ctx context.Context) (*mesh.Keys, error) { return wirekey.Open(ctx, KeyDir(where)) },
		})
		return err
	}))
	t.Cleanup(h.mesh.Close)
	return h
}

// The host implements its agent's Fabric with a mesh in its namespace.
func (h *wireHost) Apply(ctx context.Context, self mesh.Self, peers []mesh.Peer) error {
	err := h.Conn.Do(func() error { return h.mesh.Apply(ctx, self, peers) })
	h.applied.Store(&self)
	return err
}

func (h *wireHost) Encrypt(ctx context.Context) (k mesh.Key, err error) {
	if h.mute {
		return k, errors.New("this kernel has no WireGuard")
	}
	return h.mesh.Encrypt(ctx)
}

func (h *wireHost) UplinkMTU(underlay []netip.Addr) (int, error) { return h.mesh.UplinkMTU(underlay) }

func (*wireHost) Watch(ctx context.Context, _ func()) error { <-ctx.Done(); return nil }

func (*wireHost) Probe(ctx context.Context, _ func()) error { <-ctx.Done(); return nil }

// container gives the host a container on a network and returns its address.
func (h *wireHost) container(network string) netip.Addr {
	h.t.Helper()
	a := h.block(network).Addr().Next().Next()
	h.Give("lo", a.String()+"/32")
	return a
}

// wired makes two hosts, each with a default route to the other one, and two networks: secret is encrypted,
// and open is not.
func wired(t *testing.T) (s store.Store, a, b *wireHost) {
	t.Helper()
	nettest.Need(t, nettest.LinkKind("vxlan"))
	nettest.Need(t, nettest.Program("nft"))
	s = openStore(t)
	a, b = newWireHost(t, s, 1), newWireHost(t, s, 2)
	wire.Uplinks(a.Host, b.Host, "192.0.2.0/24")
	for _, h := range []*wireHost{a, b} {
		h.Give("lo")
		h.sysctl("net/ipv4/conf/all/rp_filter", "0")
		h.sysctl("net/ipv4/conf/up0/rp_filter", "0")
	}
	must(t, Admin{s}.Create(t.Context(), store.Network{Name: "secret", Subnets: prefixes("10.210.0.0/16"), BlockBits4: 24, Transport: store.WireGuard}))
	must(t, Admin{s}.Create(t.Context(), store.Network{Name: "open", Subnets: prefixes("10.211.0.0/16"), BlockBits4: 24, Transport: store.VXLAN}))
	return s, a, b
}

func (h *wireHost) sysctl(name, value string) {
	h.t.Helper()
	must(h.t, h.Conn.Do(func() error { return os.WriteFile("/proc/sys/"+name, []byte(value), 0o644) }))
}

// refused checks that nothing can be sent.
func refused(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, unix.EHOSTUNREACH) && !errors.Is(err, unix.EACCES) {
		t.Errorf("%s: %v, want no route to host", what, err)
	}
}

func (h *wireHost) reports(part string) {
	h.t.Helper()
	until(h.t, part, func() bool {
		return slices.ContainsFunc(h.agent.problems.All(), func(s string) bool { return strings.Contains(s, part) })
	})
}

func (h *wireHost) nft(args ...string) {
	h.t.Helper()
	must(h.t, h.Conn.Do(func() error {
		out, err := exec.Command("nft", args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}))
}

// hasRoute reports whether the host has an unreachable route.
func (h *wireHost) hasRoute(dst string) bool {
	h.t.Helper()
	list, err := h.Conn.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: mesh.DefaultProtocol}, netlink.RT_FILTER_PROTOCOL)
	must(h.t, err)
	return slices.ContainsFunc(list, func(r netlink.Route) bool {
		return r.Type == unix.RTN_UNREACHABLE && nl.PrefixOf(r.Dst).String() == dst
	})
}

// routeTo returns the next hop of a route to an address.
func (h *wireHost) routeTo(a netip.Addr) netlink.Route {
	h.t.Helper()
	list, err := h.Conn.RouteGetWithOptions(a.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	must(h.t, err)
	return netlink.Route{LinkIndex: list[0].LinkIndex, Gw: list[0].Gw, Via: list[0].Via, Flags: int(netlink.FLAG_ONLINK)}
}

const (
	plainPort = 7777
	wirePort  = 51999 // of all agents in the tests
)

// throw sends a datagram.
func (h *wireHost) throw(from, to netip.Addr, text string) {
	h.t.Helper()
	must(h.t, h.Conn.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd) //nolint:errcheck // a test
		if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: from.As4()}); err != nil {
			return err
		}
		return unix.Sendto(fd, []byte(text), 0, &unix.SockaddrInet4{Addr: to.As4(), Port: plainPort})
	}))
}

// hears listens for datagrams. The result returns the next text, or "" if none comes.
func (h *wireHost) hears(at netip.Addr) func() string {
	h.t.Helper()
	var c net.PacketConn
	must(h.t, h.Conn.Do(func() (err error) {
		c, err = net.ListenPacket("udp", netip.AddrPortFrom(at, plainPort).String())
		return err
	}))
	h.t.Cleanup(func() { c.Close() }) //nolint:errcheck // a test
	return func() string {
		h.t.Helper()
		must(h.t, c.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
		buf := make([]byte, 100)
		n, _, _ := c.ReadFrom(buf)
		return string(buf[:n])
	}
}
