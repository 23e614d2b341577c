// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"encoding/binary"
	"hash/crc32"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// arrived has the number of each probe that arrived, with the address to which it came. A raw
// socket receives a probe, after the hook input.
var arrived = struct {
	sync.Mutex
	at map[uint32]netip.Addr
}{at: make(map[uint32]netip.Addr)}

func hasArrived(number uint32, at netip.Addr) bool {
	arrived.Lock()
	defer arrived.Unlock()
	return arrived.at[number] == at
}

// forgetArrivals makes room for the next probes.
func forgetArrivals() {
	arrived.Lock()
	defer arrived.Unlock()
	clear(arrived.at)
}

// receive notes the probes that come to an address, until its socket is closed.
func receive(conn net.PacketConn, a netip.Addr, proto uint8) {
	b := make([]byte, 2048)
	for {
		n, _, err := conn.ReadFrom(b)
		if err != nil {
			return
		}
		if number, ok := numberOf(proto, b[:n]); ok {
			arrived.Lock()
			arrived.at[number] = a
			arrived.Unlock()
		}
	}
}

func protocolsOf(a netip.Addr) []uint8 {
	icmp := uint8(unix.IPPROTO_ICMP)
	if a.Is6() {
		icmp = unix.IPPROTO_ICMPV6
	}
	return []uint8{icmp, unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP}
}

// These are types of ICMP and flags of TCP.
const (
	echo4 = 8
	echo6 = 128
	syn   = 1 << 1
)

// packet returns the first packet of a connection, with the probe's number in it.
func packet(number uint32, from, to netip.Addr, proto uint8, port uint16) []byte {
	source := uint16(1024 + number%60000)
	b := make([]byte, 20, 40)
	switch proto {
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		b = b[:8]
		b[0] = echo4
		if proto == unix.IPPROTO_ICMPV6 {
			b[0] = echo6 // the kernel adds the checksum
			binary.BigEndian.PutUint32(b[4:], number)
			return b
		}
		binary.BigEndian.PutUint32(b[4:], number)
		binary.BigEndian.PutUint16(b[2:], checksum(b, 0))
		return b
	case unix.IPPROTO_SCTP:
		return initiate(b[:12], number, source, port)
	case unix.IPPROTO_UDP:
		b = b[:12]
		binary.BigEndian.PutUint16(b[4:], uint16(len(b)))
		binary.BigEndian.PutUint32(b[8:], number)
	default:
		binary.BigEndian.PutUint32(b[4:], number)
		b[12], b[13] = 5<<4, syn
		b[14] = 1 // window
	}
	binary.BigEndian.PutUint16(b, source)
	binary.BigEndian.PutUint16(b[2:], port)
	at := map[uint8]int{unix.IPPROTO_UDP: 6, unix.IPPROTO_TCP: 16}[proto]
	binary.BigEndian.PutUint16(b[at:], checksum(b, pseudo(from, to, proto, len(b))))
	return b
}

// initiate returns an SCTP packet with the chunk INIT.
func initiate(b []byte, number uint32, source, port uint16) []byte {
	binary.BigEndian.PutUint16(b, source)
	binary.BigEndian.PutUint16(b[2:], port)
	b = append(b, 1, 0, 0, 20) // type, flags, length
	b = binary.BigEndian.AppendUint32(b, number|1<<31)
	b = binary.BigEndian.AppendUint32(b, 1<<16)
	b = append(b, 0, 1, 0, 1, 0, 0, 0, 1)
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// numberOf returns the number of a probe; ok is false for other packets, such as answers.
func numberOf(proto uint8, b []byte) (number uint32, ok bool) {
	at := map[uint8]int{unix.IPPROTO_ICMP: 4, unix.IPPROTO_ICMPV6: 4, unix.IPPROTO_TCP: 4, unix.IPPROTO_UDP: 8, unix.IPPROTO_SCTP: 16}[proto]
	if len(b) < at+4 {
		return 0, false
	}
	switch number = binary.BigEndian.Uint32(b[at:]); proto {
	case unix.IPPROTO_ICMP:
		ok = b[0] == echo4
	case unix.IPPROTO_ICMPV6:
		ok = b[0] == echo6
	case unix.IPPROTO_TCP:
		ok = b[13] == syn
	case unix.IPPROTO_SCTP:
		number, ok = number&^(1<<31), b[12] == 1
	default:
		ok = true
	}
	return number, ok
}

// pseudo returns the sum of the pseudo header.
func pseudo(from, to netip.Addr, proto uint8, size int) uint32 {
	return sum(from.AsSlice()) + sum(to.AsSlice()) + uint32(proto) + uint32(size)
}

func sum(b []byte) (s uint32) {
	for i := 0; i+1 < len(b); i += 2 {
		s += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	return s
}

// checksum returns the checksum of a packet of even length.
func checksum(b []byte, start uint32) uint16 {
	s := start + sum(b)
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return ^uint16(s)
}

// until waits for a condition, at most a second.
func until(done func() bool) {
	for deadline := time.Now().Add(time.Second); !done() && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
}
