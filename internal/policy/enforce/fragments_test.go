// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// piece is a fragment: bytes first to last of a UDP datagram for a port. Another port may be claimed in one of
// several fragments with the same bytes.
type piece struct {
	first, last int
	port        uint16
}

const wholeSize = 40 // of the datagrams, with the header

// fragmented are ways to send a datagram, by whether it can arrive at port 81 at all.
var fragmented = []struct {
	name    string
	arrives bool
	pieces  []piece
}{
	{"in order", true, []piece{{0, 16, 81}, {16, 40, 81}}},
	{"the last one first", true, []piece{{16, 40, 81}, {0, 16, 81}}},
	{"the ports alone", true, []piece{{0, 8, 81}, {8, 40, 81}}},
	{"the allowed port first", false, []piece{{0, 16, 80}, {0, 16, 81}, {16, 40, 81}}},
	{"the allowed port last", false, []piece{{16, 40, 81}, {0, 16, 81}, {0, 16, 80}}},
	{"both overlap", false, []piece{{0, 24, 80}, {0, 16, 81}, {16, 40, 81}}},
	{"no first one", false, []piece{{16, 40, 81}}},
}

// A policy judges a datagram by its ports, however it is cut into fragments.
func TestFragments(t *testing.T) {
	p := newPair(t, Options{})
	for _, family := range [][2]string{{"10.1.1.1", "10.1.1.2"}, {"fd01::1:1", "fd01::1:2"}} {
		from, to := netip.MustParseAddr(family[0]), netip.MustParseAddr(family[1])
		denied, allowed := p.hear(netip.AddrPortFrom(to, 81)), p.hear(netip.AddrPortFrom(to, 80))
		id := uint32(time.Now().UnixNano())
		arrives := func(at net.PacketConn, pieces []piece) bool {
			id++
			for _, f := range pieces {
				p.sendFragment(from, to, id, f)
			}
			return heardNumber(t, at, id)
		}
		for _, f := range fragmented {
			p.load()
			if f.arrives && !arrives(denied, f.pieces) {
				t.Errorf("%s, %s: does not arrive without policies", to, f.name)
			}
			p.load(onB + `{"ports":[{"protocol":"UDP","port":80}]}]}`)
			if arrives(denied, f.pieces) {
				t.Errorf("%s, %s: arrives at a port that no policy allows", to, f.name)
			}
		}
		if !arrives(allowed, []piece{{16, 40, 80}, {0, 16, 80}}) {
			t.Errorf("%s: fragments for the allowed port do not arrive", to)
		}
	}
}

func (p *pair) hear(at netip.AddrPort) (c net.PacketConn) {
	p.t.Helper()
	must(p.t, p.server.Do(func() (err error) { c, err = net.ListenPacket("udp", at.String()); return err }))
	p.t.Cleanup(func() { c.Close() }) //nolint:errcheck // a test
	return c
}

// heardNumber reports whether the datagram with a number arrives.
func heardNumber(t *testing.T, c net.PacketConn, number uint32) bool {
	t.Helper()
	must(t, c.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
	for b := make([]byte, 100); ; {
		n, _, err := c.ReadFrom(b)
		if err != nil {
			return false
		}
		if n == wholeSize-8 && binary.BigEndian.Uint32(b) == number {
			return true
		}
	}
}

// sendFragment sends a part of the datagram whose number is id.
func (p *pair) sendFragment(from, to netip.Addr, id uint32, f piece) {
	p.t.Helper()
	udp := make([]byte, wholeSize)
	binary.BigEndian.PutUint16(udp, 1111)
	binary.BigEndian.PutUint16(udp[2:], f.port)
	binary.BigEndian.PutUint16(udp[4:], wholeSize)
	binary.BigEndian.PutUint32(udp[8:], id)
	binary.BigEndian.PutUint16(udp[6:], checksum(udp, pseudo(from, to, unix.IPPROTO_UDP, wholeSize)))
	part := uint16(f.first / 8)
	family, packet, sa := unix.AF_INET, []byte(nil), unix.Sockaddr(&unix.SockaddrInet4{Addr: [4]byte(to.AsSlice()[:4])})
	if more := f.last < wholeSize; to.Is4() {
		packet = header4(from, to, uint16(id), part|bitIf(more, 1<<13), f.last-f.first)
	} else {
		family, sa = unix.AF_INET6, &unix.SockaddrInet6{Addr: to.As16()}
		packet = header6(from, to, id, part<<3|bitIf(more, 1), f.last-f.first)
	}
	must(p.t, p.client.Do(func() error {
		fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd) //nolint:errcheck // a test
		return unix.Sendto(fd, append(packet, udp[f.first:f.last]...), 0, sa)
	}))
}

func bitIf(set bool, value uint16) uint16 {
	if set {
		return value
	}
	return 0
}

// header4 returns a header of IPv4. The kernel adds the checksum.
func header4(from, to netip.Addr, id, fragment uint16, size int) []byte {
	h := make([]byte, 12, 20)
	h[0], h[8], h[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(h[2:], uint16(20+size))
	binary.BigEndian.PutUint16(h[4:], id)
	binary.BigEndian.PutUint16(h[6:], fragment)
	return append(append(h, from.AsSlice()...), to.AsSlice()...)
}

// header6 returns a header of IPv6 with a fragment header.
func header6(from, to netip.Addr, id uint32, fragment uint16, size int) []byte {
	h := []byte{0x60, 0, 0, 0, 0, byte(8 + size), unix.IPPROTO_FRAGMENT, 64}
	h = append(append(h, from.AsSlice()...), to.AsSlice()...)
	h = append(h, unix.IPPROTO_UDP, 0)
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(h, fragment), id)
}
