// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"errors"
	"net/netip"
	"reflect"
	"testing"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/netns"
)

// The kernel divides a long answer into several messages. It may divide a peer's allowed
// addresses too.
func TestParseWireDevice(t *testing.T) {
	four, six := netip.MustParseAddrPort("192.0.2.1:51820"), netip.MustParseAddrPort("[2001:db8::1]:1234")
	peer := func(key byte, at netip.AddrPort, allowed ...string) *vnl.RtAttr {
		out := attr(0, nil)
		k := WireKey{key}
		out.AddRtAttr(wirePeerKey, k[:])
		if at.IsValid() {
			out.AddRtAttr(wirePeerAddr, sockaddr(at))
		}
		list := out.AddRtAttr(wirePeerAllowed, nil)
		for _, a := range allowed {
			p := netip.MustParsePrefix(a)
			one := list.AddRtAttr(0, nil)
			one.AddRtAttr(wireAllowedAddr, p.Addr().AsSlice())
			one.AddRtAttr(wireAllowedBits, []byte{byte(p.Bits())})
		}
		return out
	}
	message := func(head []*vnl.RtAttr, peers ...*vnl.RtAttr) (out []byte) {
		for _, a := range head {
			out = append(out, a.Serialize()...)
		}
		list := attr(wirePeers, nil)
		for _, p := range peers {
			list.AddChild(p)
		}
		return append(out, list.Serialize()...)
	}
	key := WireKey{9}
	head := []*vnl.RtAttr{attr(wirePublic, key[:]), attr(wirePort, vnl.Uint16Attr(51820))}
	messages := [][]byte{
		message(head, peer(1, four, "10.1.0.0/24"), peer(2, six, "10.2.0.0/24")),
		message(nil, peer(2, netip.AddrPort{}, "fd00:2::/64"), peer(3, netip.AddrPort{})),
	}
	want := WireDevice{Key: key, Port: 51820, Peers: []WirePeer{
		{WireKey{1}, four, []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}},
		{WireKey{2}, six, []netip.Prefix{netip.MustParsePrefix("10.2.0.0/24"), netip.MustParsePrefix("fd00:2::/64")}},
		{Key: WireKey{3}},
	}}
	var got WireDevice
	for _, m := range messages {
		got.add(m)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v, want\n%+v", got, want)
	}
	for n := range messages[0] { // cut off at any byte
		new(WireDevice).add(messages[0][:n])
	}
}

// TestWireGuard sets a device and reads it back. It has more peers than fit into one message of
// an answer.
func TestWireGuard(t *testing.T) {
	ns, err := netns.Open(nettest.NewNS(t, "wire"))
	must(t, err)
	c, err := In(ns, "/proc")
	must(t, err)
	t.Cleanup(c.Close)
	w, err := c.WireGuard()
	if nettest.LinkKind("wireguard").Probe() != nil && !errors.Is(err, ErrNoWireGuard) {
		t.Errorf("a kernel without WireGuard: %v", err)
	}
	nettest.Need(t, nettest.LinkKind("wireguard"))
	must(t, err)
	defer w.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "wg"
	must(t, c.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs}))
	link, err := c.Link("wg")
	must(t, err)
	index := link.Attrs().Index
	must(t, w.SetDevice(index, WireKey{1}, 12345))
	want := make(map[WireKey]int)
	for n := range 300 {
		p := WirePeer{Key: WireKey{1, byte(n), byte(n >> 8)}, Endpoint: netip.MustParseAddrPort("[2001:db8::1]:1")}
		for bits := range n % 20 {
			p.Allowed = append(p.Allowed, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(n >> 8), byte(n), byte(bits)}), 32))
		}
		must(t, w.SetPeer(index, p, false))
		want[p.Key] = len(p.Allowed)
	}
	d, err := w.Device(index)
	must(t, err)
	got := make(map[WireKey]int)
	for _, p := range d.Peers {
		got[p.Key] = len(p.Allowed)
	}
	if d.Port != 12345 || d.Key == (WireKey{}) || !reflect.DeepEqual(got, want) {
		t.Errorf("port %d, key %s, %d peers: %v", d.Port, d.Key, len(d.Peers), got)
	}
	must(t, w.DeletePeer(index, WireKey{1}))
	if d, err = w.Device(index); err != nil || len(d.Peers) != 299 {
		t.Errorf("%d peers, %v", len(d.Peers), err)
	}
}
