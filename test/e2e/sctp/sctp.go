// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package sctp opens SCTP associations through raw sockets, for tests of policies on kernels without
// SCTP sockets. Its packets are those of RFC 9260, so firewalls and connection tracking judge them
// as those of a kernel. It sends no data. It needs CAP_NET_RAW, which containers have by default.
//
// Do not use it on a kernel that has SCTP: there, the kernel also answers.
package sctp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// These are the types of chunks (RFC 9260, section 3.2).
const (
	initiate   = 1
	initAck    = 2
	abort      = 6
	cookieEcho = 10
	cookieAck  = 11
)

// again is how long a client waits before it repeats a packet.
const again = 250 * time.Millisecond

// InKernel reports whether the kernel has SCTP sockets.
func InKernel() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP)
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}

// packet is a packet with one chunk.
type packet struct {
	from, to uint16 // ports
	tag      uint32 // the tag that the receiver chose; 0 in the first packet
	kind     byte
	body     []byte
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (p packet) bytes() []byte {
	b := binary.BigEndian.AppendUint16(nil, p.from)
	b = binary.BigEndian.AppendUint16(b, p.to)
	b = binary.BigEndian.AppendUint32(b, p.tag)
	b = append(b, 0, 0, 0, 0, p.kind, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(4+len(p.body)))
	b = append(b, p.body...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, castagnoli))
	return b
}

// parse reads a packet's first chunk.
func parse(b []byte) (p packet, ok bool) {
	if len(b) < 16 {
		return p, false
	}
	sum := binary.LittleEndian.Uint32(b[8:])
	b = bytes.Clone(b)
	clear(b[8:12])
	size := int(binary.BigEndian.Uint16(b[14:]))
	if crc32.Checksum(b, castagnoli) != sum || size < 4 || 12+size > len(b) {
		return p, false
	}
	return packet{binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:]), binary.BigEndian.Uint32(b[4:]), b[12], b[16 : 12+size]}, true
}

// first returns the fixed part of a chunk that opens an association: the sender's tag, its window, one stream in each
// direction, and the first sequence number.
func first(tag uint32) []byte {
	b := binary.BigEndian.AppendUint32(nil, tag)
	b = binary.BigEndian.AppendUint32(b, 1<<16)
	return append(b, 0, 1, 0, 1, 0, 0, 0, 1)
}

// network is the raw network of an address's family.
func network(a netip.Addr) string {
	if a.Is4() {
		return "ip4:132"
	}
	return "ip6:132"
}

// Serve accepts associations on a port until the process ends.
func Serve(port uint16) error {
	errs := make(chan error)
	for _, a := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		c, err := net.ListenPacket(network(a), a.String())
		if err != nil {
			return fmt.Errorf("listen for SCTP: %w", err)
		}
		go func() { errs <- answer(c, port) }()
	}
	return <-errs
}

// answer answers what clients send. It keeps nothing: the cookie is the same for all.
func answer(c net.PacketConn, port uint16) error {
	buf := make([]byte, 1500)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return err
		}
		p, ok := parse(buf[:n])
		if !ok || p.to != port {
			continue
		}
		reply := packet{from: port, to: p.from}
		switch {
		case p.kind == initiate && len(p.body) >= 16:
			reply.kind, reply.tag = initAck, binary.BigEndian.Uint32(p.body)
			reply.body = append(first(reply.tag), 0, 7, 0, 8) // a cookie of four bytes: the client's tag
			reply.body = binary.BigEndian.AppendUint32(reply.body, reply.tag)
		case p.kind == cookieEcho && len(p.body) >= 4:
			reply.kind, reply.tag = cookieAck, binary.BigEndian.Uint32(p.body)
		default:
			continue
		}
		_, _ = c.WriteTo(reply.bytes(), from) // the client asks again
	}
}

// Connect opens an association, and aborts it. If no answer comes, the error is
// os.ErrDeadlineExceeded.
func Connect(to netip.AddrPort, timeout time.Duration) error {
	local := netip.IPv4Unspecified()
	if to.Addr().Is6() {
		local = netip.IPv6Unspecified()
	}
	conn, err := net.ListenPacket(network(to.Addr()), local.String())
	if err != nil {
		return fmt.Errorf("open a raw socket: %w", err)
	}
	defer conn.Close()
	c := client{PacketConn: conn, to: to, port: uint16(32768 + rand.IntN(28000)), end: time.Now().Add(timeout)}
	tag := rand.Uint32() | 1
	ack, err := c.ask(packet{kind: initiate, body: first(tag)}, initAck)
	if err != nil {
		return err
	}
	if len(ack.body) < 24 {
		return errors.New("the server's answer has no cookie")
	}
	peer := binary.BigEndian.Uint32(ack.body)
	if _, err := c.ask(packet{kind: cookieEcho, tag: peer, body: ack.body[20:24]}, cookieAck); err != nil {
		return err
	}
	return c.send(packet{kind: abort, tag: peer})
}

// client is one end of an association.
type client struct {
	net.PacketConn
	to   netip.AddrPort
	port uint16
	end  time.Time
}

func (c *client) send(p packet) error {
	p.from, p.to = c.port, c.to.Port()
	_, err := c.WriteTo(p.bytes(), &net.IPAddr{IP: c.to.Addr().AsSlice()})
	return err
}

// ask repeats a packet until the server answers with a chunk of a kind.
func (c *client) ask(p packet, kind byte) (packet, error) {
	buf := make([]byte, 1500)
	for time.Now().Before(c.end) {
		if err := c.send(p); err != nil {
			return packet{}, err
		}
		next := time.Now().Add(again)
		if next.After(c.end) {
			next = c.end
		}
		if err := c.SetReadDeadline(next); err != nil {
			return packet{}, err
		}
		for {
			n, _, err := c.ReadFrom(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return packet{}, err
			}
			if got, ok := parse(buf[:n]); ok && got.to == c.port && got.from == c.to.Port() && got.kind == kind {
				return got, nil
			}
		}
	}
	return packet{}, os.ErrDeadlineExceeded
}
