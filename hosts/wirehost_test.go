// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/hosts/store"
	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/mesh/wirekey"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/paths"
	"github.com/patchbay-net/patchbay/test/nettest"
)

// wireHost is a host in its own namespace, with an agent and a mesh. Its containers are addresses on lo.
type wireHost struct {
	*host
	number int
	conn   *nl.Conn
	mesh   *mesh.Mesh
	mute   bool // it has no WireGuard

	applied atomic.Pointer[mesh.Self] // with the last Apply
}

func newWireHost(t *testing.T, s store.Store, number int) *wireHost {
	t.Helper()
	h := &wireHost{host: newHost(t, s, number), number: number}
	h.real = h
	ns, err := netns.Open(nettest.NewNS(t, fmt.Sprint("wire", number)))
	must(t, err)
	h.conn, err = nl.In(ns, "/proc")
	must(t, err)
	t.Cleanup(h.conn.Close)
	where := paths.Paths{State: h.dir + "/state", Run: h.dir + "/run", Proc: "/proc"}
	must(t, os.MkdirAll(where.Run, 0o755))
	must(t, h.conn.Do(func() (err error) {
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
	err := h.conn.Do(func() error { return h.mesh.Apply(ctx, self, peers) })
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

func (h *wireHost) give(link string, addrs ...string) {
	h.t.Helper()
	l, err := h.conn.Link(link)
	must(h.t, err)
	must(h.t, h.conn.LinkSetUp(l))
	for _, text := range addrs {
		a, err := netlink.ParseAddr(text)
		must(h.t, err)
		if a.IP.To4() == nil {
			a.Flags = unix.IFA_F_NODAD
		}
		must(h.t, h.conn.AddrAdd(l, a))
	}
}

// container gives the host a container on a network and returns its address.
func (h *wireHost) container(network string) netip.Addr {
	h.t.Helper()
	a := h.block(network).Addr().Next().Next()
	h.give("lo", a.String()+"/32")
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
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "up0"
	must(t, a.conn.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "up0", PeerNamespace: netlink.NsFd(b.conn.NS.Fd())}))
	for _, h := range []*wireHost{a, b} {
		h.give("lo")
		h.give("up0", fmt.Sprintf("192.0.2.%d/24", h.number))
		h.sysctl("net/ipv4/conf/all/rp_filter", "0")
		h.sysctl("net/ipv4/conf/up0/rp_filter", "0")
	}
	for _, h := range []*wireHost{a, b} { // packets would leave by it
		must(t, h.conn.RouteAdd(&netlink.Route{Dst: nl.IPNet(netip.MustParsePrefix("0.0.0.0/0")), Gw: netip.AddrFrom4([4]byte{192, 0, 2, byte(3 - h.number)}).AsSlice()}))
	}
	must(t, Admin{s}.Create(t.Context(), store.Network{Name: "secret", Subnets: prefixes("10.210.0.0/16"), BlockBits4: 24, Transport: store.WireGuard}))
	must(t, Admin{s}.Create(t.Context(), store.Network{Name: "open", Subnets: prefixes("10.211.0.0/16"), BlockBits4: 24, Transport: store.VXLAN}))
	return s, a, b
}

func (h *wireHost) sysctl(name, value string) {
	h.t.Helper()
	must(h.t, h.conn.Do(func() error { return os.WriteFile("/proc/sys/"+name, []byte(value), 0o644) }))
}

// capture reads the IP packets on the host's uplink until the caller calls the result.
func (h *wireHost) capture() func() [][]byte {
	h.t.Helper()
	var fd int
	must(h.t, h.conn.Do(func() (err error) {
		all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(all)); err != nil {
			return err
		}
		link, err := h.conn.Link("up0")
		if err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Attrs().Index})
	}))
	return func() (list [][]byte) {
		defer unix.Close(fd) //nolint:errcheck // a test
		for {
			buf := make([]byte, 1<<16)
			size, _, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT)
			if err != nil {
				return list
			}
			list = append(list, buf[:size])
		}
	}
}

// send sends a text over TCP from an address of this host to one of another host. An address that is not
// valid means that the kernel chooses.
func (h *wireHost) send(from netip.Addr, to *wireHost, at netip.Addr, text string) error {
	var l net.Listener
	var c net.Conn
	if err := to.conn.Do(func() (err error) {
		config := net.ListenConfig{Control: freeBind}
		l, err = config.Listen(context.Background(), "tcp", net.JoinHostPort(at.String(), "0"))
		return err
	}); err != nil {
		return err
	}
	defer l.Close() //nolint:errcheck // a test
	if err := h.conn.Do(func() (err error) {
		d := net.Dialer{Timeout: 2 * time.Second, FallbackDelay: -1}
		if from.IsValid() {
			d.LocalAddr = &net.TCPAddr{IP: from.AsSlice()}
		}
		c, err = d.Dial("tcp", l.Addr().String())
		return err
	}); err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // a test
	far, err := l.Accept()
	if err != nil {
		return err
	}
	defer far.Close() //nolint:errcheck // a test
	if err := far.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, text); err != nil {
		return err
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(far, got); err != nil || string(got) != text {
		return fmt.Errorf("got %q: %w", got, err)
	}
	return nil
}

// freeBind lets a program listen at an address that the host does not have.
func freeBind(_, _ string, c syscall.RawConn) (err error) {
	return errors.Join(c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1) }), err)
}

// readable counts the packets that contain one of the texts.
func readable(packets [][]byte, texts ...[]byte) (n int) {
	for _, p := range packets {
		if slices.ContainsFunc(texts, func(x []byte) bool { return bytes.Contains(p, x) }) {
			n++
		}
	}
	return n
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
	must(h.t, h.conn.Do(func() error {
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
	list, err := h.conn.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: mesh.DefaultProtocol}, netlink.RT_FILTER_PROTOCOL)
	must(h.t, err)
	return slices.ContainsFunc(list, func(r netlink.Route) bool {
		return r.Type == unix.RTN_UNREACHABLE && nl.PrefixOf(r.Dst).String() == dst
	})
}

// routeTo returns the next hop of a route to an address.
func (h *wireHost) routeTo(a netip.Addr) netlink.Route {
	h.t.Helper()
	list, err := h.conn.RouteGetWithOptions(a.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
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
	must(h.t, h.conn.Do(func() error {
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
	must(h.t, h.conn.Do(func() (err error) {
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
