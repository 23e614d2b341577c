// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package drops

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/internal/answer"
	"github.com/patchbay-net/patchbay/daemons/internal/nflog"
	"github.com/patchbay-net/patchbay/internal/drops"
	"github.com/patchbay-net/patchbay/internal/sight"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var in = Kind{"ingress", "isolated"}

// What was shown, lost and not shown is together what the kernel counted, whatever comes in which order.
func TestTally(t *testing.T) {
	c := newTally(time.Now())
	c.read(map[Kind]uint64{in: 100}) // from before
	if got := c.totals(); got.Counted+got.Shown+got.NotShown != 0 {
		t.Errorf("packets from before are counted: %+v", got)
	}
	c.told[in] = 2 // they came before the counters were read
	if got := c.totals(); got.Counted != 2 || got.NotShown != 0 {
		t.Errorf("totals are %+v, want 2 shown", got)
	}
	c.read(map[Kind]uint64{in: 150, {"egress", "denied"}: 7})
	c.told[in], c.lost = 10, 5
	got := c.totals()
	if got.Counted != 57 || got.Shown != 10 || got.Lost != 5 || got.NotShown != 42 {
		t.Errorf("totals are %+v", got)
	}
	want := []drops.More{{Direction: "egress", Cause: "denied", Packets: 7}, {Direction: "ingress", Cause: "isolated", Packets: 40}}
	if got := c.more(); !slices.Equal(got, want) {
		t.Errorf("more are %+v, want %+v", got, want)
	}
	if got := c.more(); got != nil {
		t.Errorf("said twice: %+v", got)
	}
	c.read(map[Kind]uint64{in: 3}) // the table was made again
	if got := c.totals(); got.Counted != 60 {
		t.Errorf("after a flush %d packets are counted, want 60", got.Counted)
	}
}

func dropTo(pod string) drops.Line {
	return drops.Line{Drop: &drops.Drop{To: sight.End{Address: netip.MustParseAddr("10.1.0.2"), Pod: pod}}}
}

// Only the last lines are kept, in their order, and lines for which a client is too slow are counted.
func TestLines(t *testing.T) {
	var l lines
	l.follow(drops.Request{End: "shop/b"})
	missed := uint64(0)
	for i := range drops.Kept + 5 {
		missed += l.add(dropTo(fmt.Sprint("shop/", i)))
		missed += l.add(dropTo("shop/b"))
	}
	if len(l.kept) != drops.Kept {
		t.Errorf("%d lines are kept", len(l.kept))
	}
	got := l.former(drops.Request{Last: 2})
	if len(got) != 2 || got[0].Drop.To.Pod != fmt.Sprint("shop/", drops.Kept+4) || got[1].Drop.To.Pod != "shop/b" {
		t.Errorf("the last lines are %+v", got)
	}
	if n := len(l.former(drops.Request{End: "10.1.0.2"})); n != drops.Kept {
		t.Errorf("%d lines are about the address", n)
	}
	if want := uint64(drops.Kept + 5 - answer.Pending); missed != want {
		t.Errorf("%d lines are missing, want %d", missed, want)
	}
}

// fake is a Service that reads no kernel.
type fake struct {
	*Service
	path string

	mu       sync.Mutex
	counters map[Kind]uint64
}

func newFake(t *testing.T) *fake {
	f := &fake{path: filepath.Join(t.TempDir(), "drops.sock"), counters: map[Kind]uint64{}}
	l, err := net.Listen("unix", f.path)
	must(t, err)
	f.Service = New(Options{
		Group: 9472, Listener: l, Failed: func(error) {}, Explain: func(p nflog.Packet) drops.Drop {
			return drops.Drop{Direction: in.Direction, Cause: in.Cause, From: sight.End{Address: p.From}, To: sight.End{Address: p.To, Pod: "shop/b"}}
		},
		Counters: func() (map[Kind]uint64, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			return maps.Clone(f.counters), nil
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { answer.Clients(ctx, &wg, l, func(c *answer.Client) { f.answer(ctx, c) }) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	must(t, f.count())
	return f
}

func (f *fake) drop(told, more int) {
	f.mu.Lock()
	f.counters[in] += uint64(told + more)
	f.mu.Unlock()
	f.receive(slices.Repeat([]nflog.Packet{{From: netip.MustParseAddr("10.1.0.1"), To: netip.MustParseAddr("10.1.0.2")}}, told), 0)
}

// A client gets the former lines and the totals; one that follows gets new lines, too.
func TestServe(t *testing.T) {
	f := newFake(t)
	f.drop(3, 4)
	var got []drops.Line
	must(t, sight.Ask(t.Context(), f.path, drops.Request{Last: 2}, func(l drops.Line) error { got = append(got, l); return nil }))
	if len(got) != 3 || got[2].Totals == nil {
		t.Fatalf("got %+v", got)
	}
	if s := got[2].Totals; s.Counted != 7 || s.Shown != 3 || s.NotShown != 4 {
		t.Errorf("totals are %+v", s)
	}
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	must(t, sight.Ask(ctx, f.path, drops.Request{Follow: true, End: "shop/b"}, func(drops.Line) error {
		if n++; n == 3 {
			f.drop(1, 0)
		}
		if n == 4 {
			cancel()
		}
		return nil
	}))
	if n != 4 {
		t.Errorf("the client got %d lines, want 4", n)
	}
}

// A client that sends nonsense gets an error, and no agent is an error of its own.
func TestServeNonsense(t *testing.T) {
	f := newFake(t)
	conn, err := net.Dial("unix", f.path)
	must(t, err)
	_, err = conn.Write([]byte("nonsense\n"))
	must(t, err)
	b := make([]byte, 4096)
	n, err := conn.Read(b)
	must(t, err)
	must(t, conn.Close())
	if !bytes.Contains(b[:n], []byte(`"error":"the request is wrong`)) {
		t.Errorf("got %s", b[:n])
	}
	err = sight.Ask(t.Context(), f.path+"x", drops.Request{}, func(drops.Line) error { return nil })
	if !errors.Is(err, sight.ErrDial) {
		t.Errorf("without an agent: %v", err)
	}
}
