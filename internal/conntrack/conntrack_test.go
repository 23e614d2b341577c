// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/rawnl"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// track makes the namespace track connections. The kernel does so only if a rule needs it.
func track(t testing.TB) {
	t.Helper()
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	table := c.AddTable(&nftables.Table{Name: "track", Family: nftables.TableFamilyINet})
	chain := c.AddChain(&nftables.Chain{Name: "out", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityFilter})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1}, &expr.Counter{}}})
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.DelTable(table)
		if err := c.Flush(); err != nil {
			t.Error(err)
		}
	})
}

// send sends a datagram from a new port, which creates a flow.
func send(t *testing.T, to string) netip.AddrPort {
	t.Helper()
	conn, err := net.Dial("udp", to)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // nothing to lose
	if _, err := conn.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

func TestDeleteExactly(t *testing.T) {
	track(t)
	for _, tc := range []struct {
		name, one, other, foreign string
		v6                        bool
	}{
		{"IPv4", "127.0.0.1:5300", "127.0.0.2:5300", "127.0.0.1:5301", false},
		{"IPv6", "[::1]:5300", "[::1]:5302", "[::1]:5301", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := Dial()
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close() //nolint:errcheck // a test
			mine := send(t, tc.one)
			send(t, tc.other)
			send(t, tc.foreign)
			dst := netip.MustParseAddrPort(tc.one)
			f := Filter{IPv6: tc.v6, Protocol: unix.IPPROTO_UDP, OrigDst: dst.Addr(), OrigDstPort: dst.Port(),
				ReplySrc: dst.Addr(), ReplySrcPort: dst.Port()}
			flows, err := c.List(f)
			if err != nil || len(flows) != 1 || flows[0].Orig.Src != mine || flows[0].Orig.Dst != dst {
				t.Fatalf("%v, %v; want the flow of %s to %s", flows, err, mine, dst)
			}
			if err := c.Delete(flows[0]); err != nil {
				t.Fatal(err)
			}
			if err := c.Delete(flows[0]); err != nil {
				t.Errorf("deleted again: %v", err)
			}
			if left, err := c.List(f); err != nil || len(left) != 0 {
				t.Errorf("left %v, %v", left, err)
			}
			all, err := c.List(Filter{IPv6: tc.v6, Protocol: unix.IPPROTO_UDP})
			if err != nil || len(all) != 2 {
				t.Errorf("others: %v, %v; want two", all, err)
			}
		})
	}
}

// The kernel filters: it does not send other entries, so Match never sees them.
func TestKernelFilters(t *testing.T) {
	track(t)
	c, err := Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // a test
	for port := 6000; port < 6020; port++ {
		send(t, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(port)).String())
	}
	req, err := Filter{Protocol: unix.IPPROTO_UDP, OrigDstPort: 6007}.request()
	if err != nil {
		t.Fatal(err)
	}
	msgs, err := c.nl.Execute(req)
	if err != nil {
		t.Fatal(err)
	}
	if len(msgs) != 1 {
		t.Errorf("the kernel sent %d entries, want 1", len(msgs))
	}
}

// Among holds only the wanted flows in memory: one million of them would need 800 MB.
func TestAmongOnABusyNode(t *testing.T) {
	track(t)
	for range 20 {
		c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		for port := range 1000 {
			_, _ = c.WriteToUDP([]byte("x"), &net.UDPAddr{IP: net.IPv4(127, 0, 0, 2), Port: 10000 + port}) // no program listens on these ports
		}
		c.Close() //nolint:errcheck // a test
	}
	live := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	seen, before, most := 0, live(), uint64(0)
	_, err := Among(map[netip.Addr]bool{netip.MustParseAddr("127.0.0.1"): true}, func(Flow) bool {
		if seen++; seen%5000 == 1 {
			most = max(most, live())
		}
		return false
	})
	if err != nil || seen < 15000 { // a kernel may refuse some of 20,000
		t.Fatalf("%d flows, %v", seen, err)
	}
	if grown := int64(most) - int64(before); grown > 4<<20 {
		t.Errorf("%d flows take %d bytes", seen, grown)
	}
}

// Where conntrack(8) is installed, it lists the same.
func TestTool(t *testing.T) {
	nettest.Need(t, nettest.Program("conntrack"))
	track(t)
	send(t, "127.0.0.1:7007")
	out, err := exec.Command("conntrack", "-L", "-p", "udp").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "dport=7007") {
		t.Errorf("%v: %s", err, out)
	}
}

func FuzzParse(f *testing.F) {
	req, err := Filter{Protocol: 17, OrigDst: netip.MustParseAddr("10.0.0.1"), OrigDstPort: 53,
		ReplySrc: netip.MustParseAddr("10.1.0.5"), ReplySrcPort: 53}.request()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(req.Data)
	f.Add([]byte{2, 0, 0, 0, 8, 0, 1, 0x80, 4, 0, 1, 0x80})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		flow, err := parse(data)
		if err == nil && (!flow.Orig.Dst.IsValid() || flow.String() == "") {
			t.Errorf("parsed %v out of %x", flow, data)
		}
		for _, tuple := range []uint16{ctaTupleOrig, ctaTupleReply} {
			if a := source(data, tuple); a.IsValid() && !bytes.Contains(data, a.AsSlice()) {
				t.Errorf("source %v out of %x", a, data)
			}
		}
	})
}

// Among returns the flows that an address began and those that it answers, of both families, each once. For
// a few IPv4 addresses, the kernel sends no other flows.
func TestAmong(t *testing.T) {
	track(t)
	for port := 6600; port < 6620; port++ {
		send(t, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(port)).String())
	}
	both := make(map[netip.Addr]bool)
	for _, to := range []string{"127.0.0.9:6500", "[::1]:6600"} {
		from, dst := send(t, to), netip.MustParseAddrPort(to)
		both[dst.Addr()] = true
		flows, err := Among(map[netip.Addr]bool{dst.Addr(): true}, anyFlow)
		if err != nil || !slices.ContainsFunc(flows, func(f Flow) bool { return f.Orig.Src == from && f.Reply.Src == dst }) {
			t.Errorf("%s answers %v, %v; want the flow from %s", to, flows, err, from)
		}
	}
	from := netip.MustParseAddr("127.0.0.1")
	flows, err := Among(map[netip.Addr]bool{from: true}, anyFlow)
	if err != nil || len(flows) < 21 {
		t.Errorf("%s has %d flows, %v", from, len(flows), err)
	}
	if all, err := every(anyFlow); err != nil || len(once(all)) != len(all) || len(once(flows)) != len(flows) {
		t.Errorf("some flows come twice: %v, %v, %v", flows, all, err)
	}
	here := func(f Flow) bool {
		return f.Reply.Src == netip.MustParseAddrPort("127.0.0.9:6500") || f.Reply.Src == netip.MustParseAddrPort("[::1]:6600")
	}
	if flows, err := Among(both, here); err != nil || len(flows) != 2 {
		t.Errorf("both addresses have %v, %v; want two flows", flows, err)
	}
	for i := range few {
		both[netip.AddrFrom4([4]byte{127, 9, 0, byte(i)})] = true
	}
	if flows, err := Among(both, here); err != nil || len(flows) != 2 {
		t.Errorf("many addresses have %v, %v; want two flows", flows, err)
	}
	if flows, err := Among(nil, anyFlow); err != nil || len(flows) > 0 {
		t.Errorf("no address has %v, %v", flows, err)
	}
	req, err := fromRequest(ctaTupleReply, netip.MustParseAddr("127.0.0.9"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // a test
	if msgs, err := c.nl.Execute(req); err != nil || len(msgs) != 1 {
		t.Errorf("the kernel sent %d entries, %v", len(msgs), err)
	}
}

func anyFlow(Flow) bool { return true }

// every returns the wanted flows of both families, whatever their addresses.
func every(wanted func(Flow) bool) ([]Flow, error) {
	return ask([]netlink.Message{dump(unix.AF_UNSPEC, nil)}, func([]byte) bool { return true }, wanted)
}

// makeFlows makes n entries by netlink, as many as a busy node has: UDP flows from 10.0.x.y, and every
// fourth one of IPv6.
func makeFlows(b *testing.B, n int) {
	b.Helper()
	s, err := rawnl.Open(unix.NETLINK_NETFILTER)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // a test
	var text []byte
	for i := range n {
		if text = append(text, newFlow(b, i)...); len(text) > 1<<15 || i == n-1 {
			if err := s.Send(text); err != nil {
				b.Fatal(err)
			}
			text = text[:0]
		}
	}
}

// newFlow returns the request that makes one entry. It asks for no answer.
func newFlow(b *testing.B, i int) []byte {
	src, dst := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), netip.MustParseAddr("10.1.0.1")
	family := uint8(unix.AF_INET)
	if i%4 == 0 {
		src, dst, family = netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(i >> 8), 15: byte(i)}), netip.MustParseAddr("fd01::1"), unix.AF_INET6
	}
	ae := netlink.NewAttributeEncoder()
	tuple := func(kind uint16, src, dst netip.Addr, sport, dport uint16) {
		ae.Nested(kind, func(te *netlink.AttributeEncoder) error {
			te.Nested(ctaTupleIP, func(ie *netlink.AttributeEncoder) error {
				from, to := uint16(ctaIPv4Src), uint16(ctaIPv4Dst)
				if src.Is6() {
					from, to = ctaIPv6Src, ctaIPv6Dst
				}
				ie.Bytes(from, src.AsSlice())
				ie.Bytes(to, dst.AsSlice())
				return nil
			})
			te.Nested(ctaTupleProto, func(pe *netlink.AttributeEncoder) error {
				pe.ByteOrder = binary.BigEndian
				pe.Uint8(ctaProtoNum, unix.IPPROTO_UDP)
				pe.Uint16(ctaProtoSrcPort, sport)
				pe.Uint16(ctaProtoDstPort, dport)
				return nil
			})
			return nil
		})
	}
	port := uint16(1024 + i>>16)
	tuple(ctaTupleOrig, src, dst, port, 53)
	tuple(ctaTupleReply, dst, src, 53, port)
	const ctaTimeout = 7
	ae.ByteOrder = binary.BigEndian
	ae.Uint32(ctaTimeout, 600)
	attrs, err := ae.Encode()
	if err != nil {
		b.Fatal(err)
	}
	m := netlink.Message{Header: netlink.Header{Type: msgNew, Flags: netlink.Request | netlink.Create}, Data: append(header(family), attrs...)}
	m.Header.Length = uint32(unix.NLMSG_HDRLEN + len(m.Data))
	text, err := m.MarshalBinary()
	if err != nil {
		b.Fatal(err)
	}
	return text
}

// BenchmarkFlows compares the ways to find the flows of some addresses among many others. PATCHBAY_FLOWS is
// their number.
func BenchmarkFlows(b *testing.B) {
	track(b)
	n := nettest.Flows(b, draw.Number(b, "PATCHBAY_FLOWS", 50_000, 500_000))
	makeFlows(b, n)
	none := func(Flow) bool { return false }
	var have int
	if _, err := every(func(Flow) bool { have++; return false }); err != nil || have < n*9/10 {
		b.Fatalf("%d entries, %v; want %d", have, err, n)
	}
	four, six := make(map[netip.Addr]bool), make(map[netip.Addr]bool)
	for i := range 110 {
		four[netip.AddrFrom4([4]byte{10, 9, 0, byte(i)})] = true
		six[netip.AddrFrom16([16]byte{0: 0xfd, 1: 9, 15: byte(i)})] = true
	}
	some := func(all map[netip.Addr]bool, n int) map[netip.Addr]bool {
		out := make(map[netip.Addr]bool)
		for a := range all {
			if len(out) < n {
				out[a] = true
			}
		}
		return out
	}
	b.Run("All", func(b *testing.B) {
		for b.Loop() {
			if _, err := every(none); err != nil {
				b.Fatal(err)
			}
		}
	})
	for name, addrs := range map[string]map[netip.Addr]bool{
		"IPv4-1": some(four, 1), "IPv4-2": some(four, 2), "IPv4-3": some(four, 3), "IPv4-110": four, "IPv6-1": some(six, 1), "IPv6-110": six,
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := Among(addrs, none); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
