// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

// surveyed returns all entries.
func surveyed(t testing.TB) (list []Entry) {
	t.Helper()
	if err := Survey(func(e *Entry) { list = append(list, *e) }); err != nil {
		t.Fatal(err)
	}
	return list
}

// Survey reads the tuples that the other reader of the package reads, of both families.
func TestSurvey(t *testing.T) {
	track(t)
	send(t, "127.0.0.1:6900")
	send(t, "[::1]:6901")
	want, err := every(anyFlow)
	if err != nil {
		t.Fatal(err)
	}
	list := surveyed(t)
	for _, f := range want {
		if !slices.ContainsFunc(list, func(e Entry) bool { return e.Orig == f.Orig && e.Reply == f.Reply }) {
			t.Errorf("%v is missing in %+v", f, list)
		}
	}
	if len(list) != len(want) || len(want) < 2 {
		t.Errorf("%d entries, want %d", len(list), len(want))
	}
	for i, e := range list {
		if slices.ContainsFunc(list[:i], func(o Entry) bool { return o.ID == e.ID }) {
			t.Errorf("two entries have the id %x", e.ID)
		}
	}
}

// An entry keeps its id while packets come.
func TestSurveyID(t *testing.T) {
	track(t)
	conn, err := net.Dial("udp", "127.0.0.1:6910")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // a test
	id := func() uint64 {
		if _, err := conn.Write([]byte("x")); err != nil { // the answer to an earlier one, that no program listens, is an error
			conn.Write([]byte("x")) //nolint:errcheck // the entry shows it
		}
		for _, e := range surveyed(t) {
			if e.Orig.Dst.Port() == 6910 {
				return e.ID
			}
		}
		t.Fatal("no entry")
		return 0
	}
	first := id()
	if again := id(); again != first {
		t.Errorf("the id changed from %x to %x", first, again)
	}
}

// Packets are counted only if the host says so, and ICMP has its type.
func TestSurveyCounts(t *testing.T) {
	const acct = "/proc/sys/net/netfilter/nf_conntrack_acct"
	track(t)
	if err := os.WriteFile(acct, []byte("0"), 0o644); err != nil {
		t.Fatal(err)
	}
	send(t, "127.0.0.1:6920")
	if err := os.WriteFile(acct, []byte("1"), 0o644); err != nil {
		t.Fatal(err)
	}
	send(t, "127.0.0.1:6921")
	of := func(port uint16) Entry {
		list := surveyed(t)
		return list[slices.IndexFunc(list, func(e Entry) bool { return e.Orig.Dst.Port() == port })]
	}
	if e := of(6920); e.Counted || e.Bytes != 0 {
		t.Errorf("without accounting: %+v", e)
	}
	if e := of(6921); !e.Counted || e.Packets != 1 || e.Bytes != 29 {
		t.Errorf("with accounting: %+v", e)
	}
}

func FuzzEntry(f *testing.F) {
	f.Add([]byte{2, 0, 0, 0, 8, 0, 1, 0x80, 4, 0, 1, 0x80})
	f.Add([]byte{})
	req, err := Filter{Protocol: unix.IPPROTO_ICMP, OrigDst: netip.MustParseAddr("10.0.0.1"), ReplySrc: netip.MustParseAddr("10.1.0.5")}.request()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(req.Data)
	f.Fuzz(func(t *testing.T, data []byte) {
		var e Entry
		flow, err := parse(data)
		if ok := e.decode(data); err == nil && flow.Orig.Dst.IsValid() && !ok {
			t.Errorf("%x is the entry %v, and was not read", data, flow)
		}
		if _, err := e.each(data, func(*Entry) {}); err != nil && len(data) < 16 {
			t.Errorf("%d bytes: %v", len(data), err)
		}
	})
}

// BenchmarkSurvey reads as many entries as a busy node has.
func BenchmarkSurvey(b *testing.B) {
	track(b)
	n := nettest.Flows(b, draw.Number(b, "PATCHBAY_FLOWS", 50_000, 500_000))
	makeFlows(b, n)
	b.ReportAllocs()
	for b.Loop() {
		have := 0
		if err := Survey(func(*Entry) { have++ }); err != nil || have < n*9/10 {
			b.Fatalf("%d entries, %v; want %d", have, err, n)
		}
	}
}
