// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"cmp"
	"net/netip"
	"time"

	"github.com/patchbay-net/patchbay/internal/conntrack"
	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/order"
	"github.com/patchbay-net/patchbay/internal/sight"
)

// These limit the memory of a table to about 16 MB.
const (
	// MostFlows is how many flows a table has.
	MostFlows = 20000

	// MostOf is how many of them one source has, so that a port scan folds its own flows and not those of others.
	MostOf = 500

	// MostMarked is how many connections a table knows again at the next dump. More are counted in what flows have now, and
	// not in what they have seen.
	MostMarked = 1 << 17

	// Keep is how long a flow without a connection is kept, while there is room.
	Keep = time.Hour
)

// Table has the flows of the connections that it has seen in dumps: Begin, Add for each entry, End.
type Table struct {
	totals Totals
	flows  map[key]*flow
	of     map[source]int
	folded map[source]*flow

	marks, last map[uint64]struct{} // the connections of this dump, and of the one before
	full        bool
}

// key is what the connections of a flow have in common.
type key struct {
	from, to sight.End
	protocol l4.Protocol
	port     uint16
	via      netip.AddrPort
}

// source is what has at most MostOf flows: something with a name that begins connections, or all unknown addresses that
// begin connections to one end. The empty one stands for all that is between unknown addresses, and for what a full table
// folds.
type source struct{ from, to string }

type flow struct {
	now            int
	seen           uint64
	first, last    time.Time
	packets, bytes uint64
}

// New returns an empty table.
func New() *Table {
	return &Table{flows: map[key]*flow{}, of: map[source]int{}, folded: map[source]*flow{}, marks: map[uint64]struct{}{}, last: map[uint64]struct{}{}}
}

// Begin begins a dump.
func (t *Table) Begin(now time.Time) {
	if t.totals.Dumps == 0 {
		t.totals.Since = now
	}
	t.totals.Dumps++
	t.totals.At, t.totals.Connections, t.totals.Unmarked, t.totals.Counted, t.full = now, 0, 0, false, false
	t.marks, t.last = t.last, t.marks
	clear(t.marks)
	for _, f := range t.flows {
		f.idle()
	}
	for _, f := range t.folded {
		f.idle()
	}
}

func (f *flow) idle() { f.now, f.packets, f.bytes = 0, 0, 0 }

// Add adds an entry of the dump. end names the two ends. Connections of the host with itself over loopback are left out.
func (t *Table) Add(e *conntrack.Entry, end func(netip.Addr) sight.End) {
	from, to := e.Orig.Src.Addr(), e.Reply.Src.Addr()
	if from.IsLoopback() && to.IsLoopback() {
		return
	}
	t.totals.Connections++
	t.totals.Counted = t.totals.Counted || e.Counted
	k := key{from: end(from), to: end(to), protocol: l4.Protocol(e.Orig.Protocol), port: e.Reply.Src.Port()}
	if k.protocol == l4.ICMP || k.protocol == l4.ICMPv6 {
		k.port = e.Orig.Dst.Port()
	} else if e.Orig.Dst != e.Reply.Src {
		k.via = e.Orig.Dst
	}
	f := t.flow(k)
	if t.mark(e.ID) {
		f.seen++
		t.totals.Seen++
	}
	f.now++
	f.packets += e.Packets
	f.bytes += e.Bytes
	f.last = t.totals.At
}

// mark notes a connection, and reports whether it is new: the dump before did not have it.
func (t *Table) mark(id uint64) (fresh bool) {
	if len(t.marks) >= MostMarked {
		t.totals.Unmarked++
		return false
	}
	t.marks[id] = struct{}{}
	_, known := t.last[id]
	return !known
}

// flow returns the flow of a key, a new one if there is room, or the one into which it is folded.
func (t *Table) flow(k key) *flow {
	if f := t.flows[k]; f != nil {
		return f
	}
	s := sourceOf(k)
	switch {
	case len(t.flows) >= MostFlows:
		t.full = true
		return t.fold(source{})
	case t.of[s] >= MostOf:
		return t.fold(s)
	}
	t.of[s]++
	f := &flow{first: t.totals.At}
	t.flows[k] = f
	return f
}

// fold returns where the connections of a source go that have no flow of their own.
func (t *Table) fold(s source) *flow {
	if t.folded[s] == nil {
		t.folded[s] = &flow{first: t.totals.At}
	}
	return t.folded[s]
}

func sourceOf(k key) source {
	if name := k.from.Name(); name != "" {
		return source{from: name}
	}
	return source{to: k.to.Name()}
}

// End ends a dump that took some time. It forgets flows that have been idle for long, or all idle ones if there was no room.
func (t *Table) End(took, next time.Duration) {
	t.totals.Seconds, t.totals.Next = took.Seconds(), next.Seconds()
	old := func(f *flow) bool { return f.now == 0 && (t.full || t.totals.At.Sub(f.last) >= Keep) }
	for k, f := range t.flows {
		if !old(f) {
			continue
		}
		t.totals.Forgotten += f.seen
		delete(t.flows, k)
		if s := sourceOf(k); t.of[s] > 1 {
			t.of[s]--
		} else {
			delete(t.of, s)
		}
	}
	for s, f := range t.folded {
		if old(f) {
			t.totals.Forgotten += f.seen
			delete(t.folded, s)
		}
	}
}

// Totals returns the sums.
func (t *Table) Totals() Totals {
	out := t.totals
	out.Flows = len(t.flows)
	for _, f := range t.folded {
		out.Folded += f.seen
	}
	return out
}

// Lines returns the flows for a request, those with the most connections first, then what was folded, and the totals. What
// was folded is for a request that names its source, or if it has none.
func (t *Table) Lines(r Request) (lines []Line) {
	list := t.find(r)
	if r.Most > 0 {
		list = list[:min(len(list), r.Most)]
	}
	for i := range list {
		lines = append(lines, Line{Flow: &list[i]})
	}
	for s, f := range t.folded {
		if r.End == "" || r.End == s.from || r.End == s.to || s == (source{}) {
			lines = append(lines, Line{Folded: &Folded{From: s.from, To: s.to, Now: f.now, Seen: f.seen}})
		}
	}
	folded := lines[len(list):]
	order.By(folded, func(a, b Line) int {
		return cmp.Or(cmp.Compare(a.Folded.From, b.Folded.From), cmp.Compare(a.Folded.To, b.Folded.To))
	})
	totals := t.Totals()
	return append(lines, Line{Totals: &totals})
}

func (t *Table) find(r Request) (list []Flow) {
	for k, f := range t.flows {
		if r.concerns(k.from, k.to) {
			list = append(list, Flow{
				From: k.from, To: k.to, Protocol: k.protocol.String(), Port: k.port, Via: k.via,
				Now: f.now, Seen: f.seen, First: f.first, Last: f.last, Packets: f.packets, Bytes: f.bytes,
			})
		}
	}
	order.By(list, func(a, b Flow) int {
		return cmp.Or(b.Now-a.Now, cmp.Compare(b.Seen, a.Seen), a.From.Address.Compare(b.From.Address), a.To.Address.Compare(b.To.Address), int(a.Port)-int(b.Port))
	})
	return list
}
