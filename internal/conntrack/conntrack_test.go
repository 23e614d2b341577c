// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/test/nettest"
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

func TestAll(t *testing.T) {
	track(t)
	one, two := send(t, "127.0.0.1:6500"), send(t, "[::1]:6500")
	flows, err := All(func(f Flow) bool { return f.Orig.Src == one || f.Orig.Src == two })
	if err != nil || len(flows) != 2 {
		t.Errorf("found %v, %v", flows, err)
	}
}

// All holds only the wanted flows in memory: one million of them would need 800 MB.
func TestAllOfABusyNode(t *testing.T) {
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
	_, err := All(func(Flow) bool {
		if seen++; seen%5000 == 1 {
			most = max(most, live())
		}
		return false
	})
	if err != nil || seen < 20000 {
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
	})
}

// Of returns the flows that an address began and those that it answers, of both families. The kernel
// sends no others of IPv4.
func TestOf(t *testing.T) {
	track(t)
	c, err := Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // a test
	for port := 6600; port < 6620; port++ {
		send(t, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(port)).String())
	}
	for _, to := range []string{"127.0.0.9:6500", "[::1]:6600"} {
		from, dst := send(t, to), netip.MustParseAddrPort(to)
		flows, err := c.Of(dst.Addr())
		if err != nil || !slices.ContainsFunc(flows, func(f Flow) bool { return f.Orig.Src == from && f.Reply.Src == dst }) {
			t.Errorf("%s answers %v, %v; want the flow from %s", to, flows, err, from)
		}
	}
	from := netip.MustParseAddr("127.0.0.1")
	if flows, err := c.Of(from); err != nil || len(flows) < 21 {
		t.Errorf("%s has %d flows, %v", from, len(flows), err)
	}
	req, err := fromRequest(ctaTupleReply, netip.MustParseAddr("127.0.0.9"))
	if err != nil {
		t.Fatal(err)
	}
	if msgs, err := c.nl.Execute(req); err != nil || len(msgs) != 1 {
		t.Errorf("the kernel sent %d entries, %v", len(msgs), err)
	}
}

// BenchmarkOf compares one address with the whole table, beside 10,000 flows.
func BenchmarkOf(b *testing.B) {
	track(b)
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // a test
	for port := 10000; port < 20000; port++ {
		if _, err := conn.WriteTo([]byte("x"), &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}); err != nil {
			b.Fatal(err)
		}
	}
	c, err := Dial()
	if err != nil {
		b.Fatal(err)
	}
	b.Run("Of", func(b *testing.B) {
		for b.Loop() {
			if _, err := c.Of(netip.MustParseAddr("127.0.0.9")); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("All", func(b *testing.B) {
		for b.Loop() {
			if list, err := All(func(Flow) bool { return true }); err != nil || len(list) < 9000 {
				b.Fatal(err, len(list))
			}
		}
	})
}
