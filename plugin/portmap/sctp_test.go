// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/spec"
)

// An SCTP association begins with INIT. Kernels without SCTP still translate it, so the
// test sends and receives it as raw packets.
func TestSCTP(t *testing.T) {
	n, web, _ := world(t)
	a := of(web)
	a.must(t, spec.Add, ports(`{"hostPort": 7000, "containerPort": 7001, "protocol": "SCTP"}`))
	t.Cleanup(func() { a.del(t) })
	rx := rawSCTP(t, web.Space)
	tx := rawSCTP(t, n.Client)
	to := &unix.SockaddrInet4{Addr: netip.MustParseAddr(node.Uplink4).As4()}
	if err := unix.Sendto(tx, sctpInit(4000, 7000), 0, to); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 256)
	size, err := unix.Read(rx, buf)
	for errors.Is(err, unix.EINTR) { // Go's runtime signals its threads
		size, err = unix.Read(rx, buf)
	}
	if err != nil {
		t.Fatalf("nothing arrived: %v", err)
	}
	head := int(buf[0]&0xf) * 4
	packet := buf[head:size]
	if from := netip.AddrFrom4([4]byte(buf[12:16])).String(); from != node.Client4 {
		t.Errorf("from %s, want %s", from, node.Client4)
	}
	if src, dst := binary.BigEndian.Uint16(packet), binary.BigEndian.Uint16(packet[2:]); src != 4000 || dst != 7001 {
		t.Errorf("ports %d and %d, want 4000 and 7001", src, dst)
	}
	sum := binary.LittleEndian.Uint32(packet[8:])
	clear(packet[8:12])
	if want := crc32.Checksum(packet, crc32.MakeTable(crc32.Castagnoli)); sum != want {
		t.Errorf("checksum %x, want %x", sum, want)
	}
}

// rawSCTP opens a raw socket in a namespace; reading ends after a minute.
func rawSCTP(t *testing.T, s *node.Space) (fd int) {
	t.Helper()
	err := s.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) }) //nolint:errcheck // the end of the test
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 60}); err != nil {
		t.Fatal(err)
	}
	return fd
}

// sctpInit is a packet with an INIT chunk (RFC 9260, section 3.3.2).
func sctpInit(from, to uint16) []byte {
	var b []byte
	b = binary.BigEndian.AppendUint16(b, from)
	b = binary.BigEndian.AppendUint16(b, to)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0) // verification tag, checksum
	b = append(b, 1, 0, 0, 20)            // INIT
	b = binary.BigEndian.AppendUint32(b, 0x12345678)
	b = binary.BigEndian.AppendUint32(b, 65536)
	b = append(b, 0, 1, 0, 1)
	b = binary.BigEndian.AppendUint32(b, 1)
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}
