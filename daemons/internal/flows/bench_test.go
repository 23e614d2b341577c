// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/rawnl"
	"github.com/patchbay-net/patchbay/internal/sight"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

// BenchmarkDump measures the processor time of a dump with its flows: 110 pods talk to each other.
func BenchmarkDump(b *testing.B) {
	track(b)
	have := 0
	for _, n := range []int{1000, 10_000, 100_000} {
		n = nettest.Flows(b, n)
		for ; have < n; have++ {
			makeEntry(b, have)
		}
		flush(b)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			s := New(Options{Space: "x", Ends: func() func(netip.Addr) sight.End { return named }, Failed: func(err error) { must(b, err) }})
			before := cpuTime(b)
			for b.Loop() {
				s.dump()
			}
			used := cpuTime(b) - before
			t := s.table.Totals()
			if t.Connections < n*9/10 {
				b.Fatalf("%d connections, want %d", t.Connections, n)
			}
			b.ReportMetric(float64(used.Microseconds())/float64(b.N)/1000, "cpu-ms/op")
			b.ReportMetric(float64(t.Flows), "flows")
			b.ReportMetric(float64(t.Connections), "connections")
		})
	}
}

// cpuTime returns the processor time of the process, with that of the garbage collector.
func cpuTime(b *testing.B) time.Duration {
	var u unix.Rusage
	must(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

var pendingEntries []byte

// makeEntry makes an entry: a TCP connection of one of 110 pods to a port of another.
func makeEntry(b *testing.B, i int) {
	pod := func(n int) []byte { return []byte{10, 244, 1, byte(n%110 + 2)} }
	port := func(n int) []byte { return binary.BigEndian.AppendUint16(nil, uint16(n)) }
	src, dst, sport, dport := pod(i), pod(i/110), port(1024+i/110/110%60000), port(80+i%40)
	ae := netlink.NewAttributeEncoder()
	tuple := func(kind uint16, src, dst, sport, dport []byte) {
		ae.Nested(kind, func(te *netlink.AttributeEncoder) error {
			te.Nested(1, func(ip *netlink.AttributeEncoder) error { ip.Bytes(1, src); ip.Bytes(2, dst); return nil })
			te.Nested(2, func(p *netlink.AttributeEncoder) error {
				p.Uint8(1, unix.IPPROTO_UDP)
				p.Bytes(2, sport)
				p.Bytes(3, dport)
				return nil
			})
			return nil
		})
	}
	tuple(1, src, dst, sport, dport)
	tuple(2, dst, src, dport, sport)
	ae.Bytes(7, []byte{0, 0, 2, 88}) // a timeout of 600 s
	attrs, err := ae.Encode()
	must(b, err)
	m := netlink.Message{Header: netlink.Header{Type: unix.NFNL_SUBSYS_CTNETLINK << 8, Flags: netlink.Request | netlink.Create}, Data: append([]byte{unix.AF_INET, 0, 0, 0}, attrs...)}
	m.Header.Length = uint32(unix.NLMSG_HDRLEN + len(m.Data))
	text, err := m.MarshalBinary()
	must(b, err)
	if pendingEntries = append(pendingEntries, text...); len(pendingEntries) > 1<<15 {
		flush(b)
	}
}

// flush sends the entries to the kernel.
func flush(b *testing.B) {
	s, err := rawnl.Open(unix.NETLINK_NETFILTER)
	must(b, err)
	defer s.Close() //nolint:errcheck // a test
	if len(pendingEntries) > 0 {
		must(b, s.Send(pendingEntries))
	}
	pendingEntries = nil
}
