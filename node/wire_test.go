// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/mesh/wirekey"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/node/plan"
	"github.com/patchbay-net/patchbay/paths"
	"github.com/patchbay-net/patchbay/test/nettest"
)

// wireNode is a node in its own namespace, with an agent. Its pod is an address on lo.
type wireNode struct {
	*lab
	number int
	conn   *nl.Conn
	mesh   *mesh.Mesh
	keys   *mesh.Keys
	paths  paths.Paths
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newWireNode(t *testing.T, api *apiServer, number int) *wireNode {
	t.Helper()
	n := &wireNode{lab: &lab{T: t, api: api, fabric: &fakeFabric{}, dir: t.TempDir()}, number: number, paths: paths.Default()}
	ns, err := netns.Open(nettest.NewNS(t, fmt.Sprint("wire", number)))
	must(t, err)
	n.conn, err = nl.In(ns, "/proc")
	must(t, err)
	t.Cleanup(n.conn.Close)
	n.paths.State, n.paths.Run = n.dir, t.TempDir()
	n.keys, err = wirekey.Open(context.Background(), n.dir+"/key")
	must(t, err)
	must(t, n.conn.Do(func() (err error) {
		n.mesh, err = mesh.Open(mesh.Options{Paths: n.paths, Keys: n.keys, Warn: func(err error) { t.Logf("node %d: %v", number, err) }})
		return err
	}))
	t.Cleanup(n.mesh.Close)
	n.addr("lo", n.pod(4)+"/32", n.pod(6)+"/128")
	return n
}

// pod returns the address of the node's pod.
func (n *wireNode) pod(family int) string {
	if family == 4 {
		return fmt.Sprintf("10.244.%d.5", n.number)
	}
	return fmt.Sprintf("fd00:244:0:%x::5", n.number)
}

func (n *wireNode) addr(link string, addrs ...string) {
	n.Helper()
	l, err := n.conn.Link(link)
	must(n.T, err)
	must(n.T, n.conn.LinkSetUp(l))
	for _, text := range addrs {
		a, err := netlink.ParseAddr(text)
		must(n.T, err)
		if a.IP.To4() == nil {
			a.Flags = unix.IFA_F_NODAD
		}
		must(n.T, n.conn.AddrAdd(l, a))
	}
}

// The node implements its agent's Fabric with a mesh in the node's namespace.
func (n *wireNode) Apply(ctx context.Context, self mesh.Self, peers []mesh.Peer) error {
	return n.conn.Do(func() error { return n.mesh.Apply(ctx, self, peers) })
}

func (n *wireNode) UplinkMTU(underlay []netip.Addr) (int, error) { return n.mesh.UplinkMTU(underlay) }

func (*wireNode) Watch(ctx context.Context, _ func()) error { <-ctx.Done(); return nil }

func (*wireNode) Probe(ctx context.Context, _ func()) error { <-ctx.Done(); return nil }

func (n *wireNode) run() {
	n.start(func(o *Options) {
		o.Node, o.Paths, o.Fabric = fmt.Sprint("n", n.number), n.paths, n
		o.Transport, o.Key, o.WirePort = mesh.WireGuard, n.keys.Public, wirePort
	})
}

const wirePort = 51821

// capture reads the IP packets on the node's uplink until the caller calls the result.
func (n *wireNode) capture() func() [][]byte {
	n.Helper()
	var fd int
	must(n.T, n.conn.Do(func() (err error) {
		all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(all)); err != nil {
			return err
		}
		link, err := n.conn.Link("up0")
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

// send sends a text from this node's pod to another's over TCP.
func (n *wireNode) send(to *wireNode, family int, text string) error {
	var l net.Listener
	var c net.Conn
	if err := to.conn.Do(func() (err error) { l, err = net.Listen("tcp", net.JoinHostPort(to.pod(family), "0")); return err }); err != nil {
		return err
	}
	defer l.Close() //nolint:errcheck // a test
	if err := n.conn.Do(func() (err error) {
		d := net.Dialer{Timeout: 2 * time.Second, FallbackDelay: -1, LocalAddr: &net.TCPAddr{IP: net.ParseIP(n.pod(family))}}
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
	if err := errors.Join(c.SetDeadline(time.Now().Add(patience)), far.SetDeadline(time.Now().Add(patience))); err != nil {
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

// clear counts the unencrypted packets: packets with the text, or with an address of a pod.
func clear(packets [][]byte) (n int) {
	for _, p := range packets {
		for _, secret := range [][]byte{[]byte("a secret"), {10, 244, 2, 5}, netip.MustParseAddr("fd00:244:0:2::5").AsSlice()} {
			if bytes.Contains(p, secret) {
				n++
			}
		}
	}
	return n
}

// Two agents publish their keys, and their nodes' pods reach each other. No packet leaves
// unencrypted, also while a key is missing. Clear removes everything that the agents made.
func TestEncryptedNodes(t *testing.T) {
	nettest.Need(t, nettest.LinkKind("wireguard"))
	api := newAPIServer(t)
	a, b := newWireNode(t, api, 1), newWireNode(t, api, 2)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "up0"
	must(t, a.conn.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "up0", PeerNamespace: netlink.NsFd(b.conn.NS.Fd())}))
	for _, n := range []*wireNode{a, b} {
		n.addr("up0", fmt.Sprintf("192.0.2.%d/24", n.number), fmt.Sprintf("2001:db8::%d/64", n.number))
		for _, dst := range []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")} { // packets would leave by it
			via := map[bool]string{true: fmt.Sprint("192.0.2.", 3-n.number), false: fmt.Sprint("2001:db8::", 3-n.number)}[dst.Addr().Is4()]
			must(t, n.conn.RouteAdd(&netlink.Route{Dst: nl.IPNet(dst), Gw: netip.MustParseAddr(via).AsSlice()}))
		}
		api.set(kubeNode(n.number))
	}
	seen := b.capture()
	a.run()
	a.await("ready", func() bool { return a.Ready() == nil })
	for _, family := range []int{4, 6} {
		if err := a.send(b, family, "a secret"); !errors.Is(err, unix.EHOSTUNREACH) && !errors.Is(err, unix.EACCES) {
			t.Errorf("IPv%d before the other node has a key: %v", family, err)
		}
	}
	b.run()
	for _, family := range []int{4, 6} {
		a.await("traffic", func() bool { return a.send(b, family, "a secret") == nil })
		must(t, b.send(a, family, "a secret"))
	}
	encrypted := 0
	packets := seen()
	for _, p := range packets {
		if len(p) > 24 && p[0]>>4 == 4 && p[9] == unix.IPPROTO_UDP && binary.BigEndian.Uint16(p[22:]) == wirePort {
			encrypted++
		}
	}
	if n := clear(packets); n > 0 || encrypted == 0 {
		t.Errorf("%d packets of %d can be read, %d are WireGuard's", n, len(packets), encrypted)
	}

	b.stop()
	api.set(keyNode(2, "nonsense"))
	a.await("a problem", func() bool { return a.trouble.count()[plan.BadKey] == 1 })
	a.await("no device", func() bool { _, err := a.conn.Link(plan.WireDevice); return nl.IsNotFound(err) })
	seen = b.capture()
	if err := a.send(b, 4, "a secret"); err == nil {
		t.Error("it was sent")
	}
	if n := clear(seen()); n > 0 {
		t.Errorf("without a key %d packets can be read", n)
	}
	b.run()
	a.await("traffic again", func() bool { return a.send(b, 4, "a secret") == nil })

	a.stop()
	must(t, a.conn.Do(func() error { return a.mesh.Clear(context.Background(), plan.Settings{}.Mesh()) }))
	if _, err := a.conn.Link(plan.WireDevice); !nl.IsNotFound(err) {
		t.Errorf("the device stayed: %v", err)
	}
}
