// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/conntrack"
	"github.com/patchbay-net/patchbay/internal/sight"
)

var noon = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

// names has pods at 10.1.0.0/16, named after their addresses, and the node at 10.0.0.1.
func names(a netip.Addr) sight.End {
	e := sight.End{Address: a}
	switch b := a.As4(); {
	case b[0] == 10 && b[1] == 1:
		e.Pod = fmt.Sprintf("shop/p%d", int(b[2])<<8|int(b[3]))
	case a == netip.MustParseAddr("10.0.0.1"):
		e.Node = "n1"
	}
	return e
}

func pod(n int) string { return fmt.Sprintf("10.1.%d.%d", n>>8, n&255) }

// entry returns a connection without NAT. Its ports make its id.
func entry(from, to string, sport, port uint16) conntrack.Entry {
	t := conntrack.Tuple{Protocol: 6, Src: netip.AddrPortFrom(netip.MustParseAddr(from), sport), Dst: netip.AddrPortFrom(netip.MustParseAddr(to), port)}
	return conntrack.Entry{Orig: t, Reply: conntrack.Tuple{Protocol: 6, Src: t.Dst, Dst: t.Src}, ID: rand.Uint64()}
}

func (t *Table) dump(at time.Time, list ...conntrack.Entry) {
	t.Begin(at)
	for i := range list {
		t.Add(&list[i], names)
	}
	t.End(time.Millisecond, time.Second)
}

// sums checks that every connection is in exactly one place, and returns the flows.
func (t *Table) sums(tt *testing.T) (list []Flow, folded []Folded, totals Totals) {
	tt.Helper()
	var seen, now uint64
	for _, l := range t.Lines(Request{}) {
		switch {
		case l.Flow != nil:
			list = append(list, *l.Flow)
			seen, now = seen+l.Flow.Seen, now+uint64(l.Flow.Now)
		case l.Folded != nil:
			folded = append(folded, *l.Folded)
			seen, now = seen+l.Folded.Seen, now+uint64(l.Folded.Now)
		case l.Totals != nil:
			totals = *l.Totals
		}
	}
	if seen+totals.Forgotten != totals.Seen || now != uint64(totals.Connections) {
		tt.Errorf("flows and folded have seen %d and have %d connections, and the totals are %+v", seen, now, totals)
	}
	return list, folded, totals
}

// Connections of one kind are one flow, each is seen once, and one that has gone stays in what was seen.
func TestTable(t *testing.T) {
	tab := New()
	a, b, c := entry(pod(5), pod(6), 1000, 5432), entry(pod(5), pod(6), 1001, 5432), entry(pod(5), "8.8.8.8", 1002, 443)
	a.Counted, a.Packets, a.Bytes = true, 4, 400
	tab.dump(noon, a, c)
	a.Packets, a.Bytes = 5, 500
	tab.dump(noon.Add(time.Minute), a, b)
	list, _, totals := tab.sums(t)
	end := func(a string) sight.End { return names(netip.MustParseAddr(a)) }
	want := []Flow{
		{From: end(pod(5)), To: end(pod(6)), Protocol: "tcp", Port: 5432, Now: 2, Seen: 2, First: noon, Last: noon.Add(time.Minute), Packets: 5, Bytes: 500},
		{From: end(pod(5)), To: end("8.8.8.8"), Protocol: "tcp", Port: 443, Seen: 1, First: noon, Last: noon},
	}
	if !slices.Equal(list, want) {
		t.Errorf("got  %+v\nwant %+v", list, want)
	}
	if totals.Seen != 3 || totals.Connections != 2 || totals.Dumps != 2 || !totals.Counted || !totals.Since.Equal(noon) {
		t.Errorf("totals are %+v", totals)
	}
	tab.dump(noon.Add(Keep), b)
	if list, _, totals := tab.sums(t); len(list) != 1 || totals.Forgotten != 1 || totals.Counted {
		t.Errorf("after an hour: %+v, %+v", list, totals)
	}
}

// A connection to a Service is one to its endpoint, by way of the Service. A masqueraded one is the pod's. A ping has its type.
func TestTableTranslated(t *testing.T) {
	service, masqueraded, ping := entry(pod(5), "10.96.0.10", 1000, 80), entry(pod(5), "8.8.8.8", 1001, 53), entry(pod(5), "8.8.8.8", 0, 8)
	service.Reply.Src = netip.MustParseAddrPort(pod(6) + ":8080")
	masqueraded.Reply.Dst = netip.MustParseAddrPort("10.0.0.1:2000")
	ping.Orig.Protocol, ping.Reply.Src = 1, netip.MustParseAddrPort("8.8.8.8:0")
	tab := New()
	tab.dump(noon, service, masqueraded, ping, entry("127.0.0.1", "127.0.0.1", 1, 2))
	list, _, _ := tab.sums(t)
	var got []string
	for _, f := range list {
		got = append(got, fmt.Sprint(f.From, " ", f.To, " ", f.Protocol, f.Port, " ", f.Via.IsValid(), f.Via.String() == "10.96.0.10:80"))
	}
	want := []string{
		"shop/p5 10.1.0.5 8.8.8.8 icmp8 false false", "shop/p5 10.1.0.5 8.8.8.8 tcp53 false false", "shop/p5 10.1.0.5 shop/p6 10.1.0.6 tcp8080 true true",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// A pod that scans ports folds its own flows, and so do strangers that scan a pod. Flows of others come as before.
func TestTableScan(t *testing.T) {
	tab := New()
	var scan []conntrack.Entry
	for i := range 3000 {
		scan = append(scan, entry(pod(66), pod(i%50), 1000, uint16(1000+i)), entry(fmt.Sprintf("9.9.%d.%d", i>>8, i&255), pod(7), 1000, 443))
	}
	tab.dump(noon, append(scan, entry(pod(500), pod(600), 1000, 80), entry("9.8.0.1", pod(8), 1000, 443))...)
	list, folded, totals := tab.sums(t)
	if len(list) != 2*MostOf+2 || totals.Folded != 2*(3000-MostOf) {
		t.Errorf("%d flows, totals %+v", len(list), totals)
	}
	want := []Folded{{To: "shop/p7", Now: 3000 - MostOf, Seen: 3000 - MostOf}, {From: "shop/p66", Now: 3000 - MostOf, Seen: 3000 - MostOf}}
	if !slices.Equal(folded, want) {
		t.Errorf("folded are %+v, want %+v", folded, want)
	}
	if lines := tab.Lines(Request{End: "shop/p500"}); len(lines) != 2 || lines[0].Flow.To.Pod != "shop/p600" {
		t.Errorf("a pod has %+v", lines)
	}
	if lines := tab.Lines(Request{End: "shop/p66", Most: 3}); len(lines) != 5 || lines[3].Folded == nil || lines[4].Totals == nil {
		t.Errorf("the scanner has %+v", lines)
	}
}

// A full table folds what is new, and forgets idle flows, so the next dump has room.
func TestTableFull(t *testing.T) {
	tab := New()
	var many []conntrack.Entry
	for i := range MostFlows + 10 {
		many = append(many, entry(pod(i/MostOf), pod(6), 1000, uint16(i%MostOf)))
	}
	tab.dump(noon, many...)
	if list, folded, _ := tab.sums(t); len(list) != MostFlows || !slices.Equal(folded, []Folded{{Now: 10, Seen: 10}}) {
		t.Errorf("%d flows, %+v", len(list), folded)
	}
	fresh := entry(pod(300), pod(6), 1000, 80)
	tab.dump(noon.Add(time.Second), append(many[MostFlows/2:], fresh)...)
	if list, _, totals := tab.sums(t); len(list) != MostFlows/2 || totals.Forgotten != MostFlows/2 {
		t.Errorf("%d flows, totals %+v", len(list), totals)
	}
	tab.dump(noon.Add(2*time.Second), append(many[MostFlows/2:], fresh)...)
	if list, _, _ := tab.sums(t); len(list) != MostFlows/2+10+1 {
		t.Errorf("%d flows with room", len(list))
	}
}

// Of connections beyond those that a table can know again, it is said that it does not know whether they are new.
func TestTableUnmarked(t *testing.T) {
	tab := New()
	tab.Begin(noon)
	for i := range MostMarked + 7 {
		e := entry(pod(5), pod(6), 1, 80)
		e.ID = uint64(i)
		tab.Add(&e, names)
	}
	tab.End(0, 0)
	if list, _, totals := tab.sums(t); totals.Unmarked != 7 || totals.Seen != MostMarked || list[0].Now != MostMarked+7 {
		t.Errorf("totals %+v, %+v", totals, list)
	}
}

// The fullest table takes about 16 MB, both sets of marks included.
func TestTableMemory(t *testing.T) {
	live := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := live()
	tab := New()
	for range 2 {
		tab.Begin(noon)
		for i := range MostMarked {
			e := entry(pod(i%MostFlows/MostOf), pod(i%7), 1000, uint16(i%MostOf))
			tab.Add(&e, names)
		}
		tab.End(0, 0)
	}
	used := int64(live()) - int64(before)
	t.Logf("%d flows and %d connections take %.1f MB", tab.Totals().Flows, tab.Totals().Connections, float64(used)/1e6)
	if used > 20<<20 {
		t.Errorf("the table takes %d bytes", used)
	}
	runtime.KeepAlive(tab)
}
