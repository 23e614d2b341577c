// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nl_test

import (
	"encoding/hex"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
)

// A neighbour has an old Ethernet address for an IP address. After the announcement it sends to
// the new one, in both families.
func TestNeighboursLearn(t *testing.T) {
	n := node.New(t)
	link := must(n.Host.Conn().Link("uplink"))(t)
	there := must(n.Router.Conn().Link("tonode"))(t)
	addrs := []netip.Addr{netip.MustParseAddr(node.Uplink4), netip.MustParseAddr(node.Uplink6)}
	stale := net.HardwareAddr{2, 0, 0, 0, 0, 0x66}
	for _, a := range addrs {
		err := n.Router.Conn().NeighSet(&netlink.Neigh{
			LinkIndex: there.Attrs().Index, IP: a.AsSlice(), HardwareAddr: stale, State: netlink.NUD_STALE,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := n.Host.Conn().Announce(link, addrs); err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
			got := remembered(t, n.Router, there, a)
			if got == link.Attrs().HardwareAddr.String() {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s is still at %s", a, got)
			}
		}
	}
	if err := n.Host.Conn().Announce(link, addrs); err != nil {
		t.Errorf("a second time: %v", err)
	}
}

func remembered(t *testing.T, s *node.Space, link netlink.Link, addr netip.Addr) string {
	t.Helper()
	list, err := s.Conn().NeighList(link.Attrs().Index, unix.AF_UNSPEC)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if e.IP.Equal(addr.AsSlice()) {
			return e.HardwareAddr.String()
		}
	}
	return "nowhere"
}

// The kernel repeats a gratuitous ARP twice, long after Announce has returned.
func TestRepeated(t *testing.T) {
	n := node.New(t)
	link := must(n.Host.Conn().Link("uplink"))(t)
	there := must(n.Router.Conn().Link("tonode"))(t)
	heard := listen(t, n.Router, there.Attrs().Index, 3)
	if err := n.Host.Conn().Announce(link, []netip.Addr{netip.MustParseAddr(node.Uplink4)}); err != nil {
		t.Fatal(err)
	}
	if len(heard) == 3 {
		t.Error("Announce waited for the repetitions")
	}
	const gratuitous = "0001080006040001" // Ethernet, IPv4, request
	mac := hex.EncodeToString(link.Attrs().HardwareAddr)
	want := gratuitous + mac + "c0000201" + "000000000000" + "c0000201"
	for i := range 3 {
		select {
		case got := <-heard:
			if got[:len(want)] != want {
				t.Errorf("number %d: got %s, want %s", i+1, got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%d announcements", i)
		}
	}
}

// listen yields the first ARP frames that arrive at a link, in hexadecimal.
func listen(t *testing.T, s *node.Space, index, first int) <-chan string {
	t.Helper()
	fd := -1
	const arp = unix.ETH_P_ARP<<8 | unix.ETH_P_ARP>>8 // in network order
	err := s.Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 60}); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: arp & 0xffff, Ifindex: index})
	})
	if err != nil {
		t.Fatal(err)
	}
	out := make(chan string, first)
	done := make(chan struct{})
	t.Cleanup(func() { <-done })
	go func() {
		defer close(done)
		defer unix.Close(fd) //nolint:errcheck // a listener
		buf := make([]byte, 64)
		for got := 0; got < first; {
			n, from, err := unix.Recvfrom(fd, buf, 0)
			if errors.Is(err, unix.EINTR) { // Go's runtime signals its threads
				continue
			}
			if err != nil {
				return
			}
			if l, ok := from.(*unix.SockaddrLinklayer); ok && l.Pkttype == unix.PACKET_BROADCAST {
				out <- hex.EncodeToString(buf[:n])
				got++
			}
		}
	}()
	return out
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
