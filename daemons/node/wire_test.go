// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/node/plan"
	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/mesh/wirekey"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/wire"
)

// wireNode is a node in its own namespace, with an agent. Its pod is an address on lo.
type wireNode struct {
	*lab
	*wire.Host
	mesh  *mesh.Mesh
	keys  *mesh.Keys
	paths paths.Paths
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newWireNode(t *testing.T, api *apiServer, number int) *wireNode {
	t.Helper()
	n := &wireNode{lab: &lab{T: t, api: api, fabric: &fakeFabric{}, dir: t.TempDir()}, Host: wire.New(t, number), paths: paths.Default()}
	n.paths.State, n.paths.Run = n.dir, t.TempDir()
	var err error
	n.keys, err = wirekey.Open(context.Background(), n.dir+"/key")
	must(t, err)
	must(t, n.Conn.Do(func() (err error) {
		n.mesh, err = mesh.Open(mesh.Options{Paths: n.paths, Keys: n.keys, Warn: func(err error) { t.Logf("node %d: %v", number, err) }})
		return err
	}))
	t.Cleanup(n.mesh.Close)
	n.Give("lo", n.pod(4).String()+"/32", n.pod(6).String()+"/128")
	return n
}

// pod returns the address of the node's pod.
func (n *wireNode) pod(family int) netip.Addr {
	if family == 4 {
		return netip.AddrFrom4([4]byte{10, 244, byte(n.Number), 5})
	}
	return netip.MustParseAddr(fmt.Sprintf("fd00:244:0:%x::5", n.Number))
}

// The node implements its agent's Fabric with a mesh in the node's namespace.
func (n *wireNode) Apply(ctx context.Context, self mesh.Self, peers []mesh.Peer) error {
	return n.Conn.Do(func() error { return n.mesh.Apply(ctx, self, peers) })
}

func (n *wireNode) UplinkMTU(underlay []netip.Addr) (int, error) { return n.mesh.UplinkMTU(underlay) }

func (*wireNode) Watch(ctx context.Context, _ func()) error { <-ctx.Done(); return nil }

func (*wireNode) Probe(ctx context.Context, _ func()) error { <-ctx.Done(); return nil }

func (n *wireNode) run() {
	n.start(func(o *Options) {
		o.Node, o.Paths, o.Fabric = fmt.Sprint("n", n.Number), n.paths, n
		o.Transport, o.Key, o.WirePort = mesh.WireGuard, n.keys.Public, wirePort
	})
}

const wirePort = 51821

// send sends a text from this node's pod to another's over TCP.
func (n *wireNode) send(to *wireNode, family int, text string) error {
	return n.Send(n.pod(family), to.Host, to.pod(family), text)
}

// clear counts the unencrypted packets: packets with the text, or with an address of a pod.
func clear(packets [][]byte) int {
	return wire.Readable(packets, []byte("a secret"), netip.MustParseAddr("10.244.2.5").AsSlice(), netip.MustParseAddr("fd00:244:0:2::5").AsSlice())
}

// Two agents publish their keys, and their nodes' pods reach each other. No packet leaves
// unencrypted, also while a key is missing. Clear removes everything that the agents made.
func TestEncryptedNodes(t *testing.T) {
	nettest.Need(t, nettest.LinkKind("wireguard"))
	api := newAPIServer(t)
	a, b := newWireNode(t, api, 1), newWireNode(t, api, 2)
	wire.Uplinks(a.Host, b.Host, "192.0.2.0/24", "2001:db8::/64")
	for _, n := range []*wireNode{a, b} {
		api.set(kubeNode(n.Number))
	}
	seen := b.Capture()
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
	a.await("no device", func() bool { _, err := a.Conn.Link(plan.WireDevice); return nl.IsNotFound(err) })
	seen = b.Capture()
	if err := a.send(b, 4, "a secret"); err == nil {
		t.Error("it was sent")
	}
	if n := clear(seen()); n > 0 {
		t.Errorf("without a key %d packets can be read", n)
	}
	b.run()
	a.await("traffic again", func() bool { return a.send(b, 4, "a secret") == nil })

	a.stop()
	must(t, a.Conn.Do(func() error { return a.mesh.Clear(context.Background(), plan.Settings{}.Mesh()) }))
	if _, err := a.Conn.Link(plan.WireDevice); !nl.IsNotFound(err) {
		t.Errorf("the device stayed: %v", err)
	}
}
