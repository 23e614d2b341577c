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
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/drops"
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
	return drops.Line{Drop: &drops.Drop{To: drops.End{Address: netip.MustParseAddr("10.1.0.2"), Pod: pod}}}
}

// Only the last lines are kept, in their order, and a slow client loses lines and is told how many.
func TestLines(t *testing.T) {
	var l lines
	f := l.follow(drops.Request{End: "shop/b"})
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
	if want := uint64(drops.Kept + 5 - pending); missed != want || f.missed != want {
		t.Errorf("%d lines are missing, %d of the client, want %d", missed, f.missed, want)
	}
	<-f.lines
	<-f.lines
	l.add(dropTo("shop/b"))
	for range pending - 2 {
		<-f.lines
	}
	if got := <-f.lines; got.Missed != missed {
		t.Errorf("the client is told %+v, want %d missing lines", got, missed)
	}
	if got := <-f.lines; got.Drop == nil || f.missed != 0 {
		t.Errorf("after the gap came %+v, and %d lines are missing", got, f.missed)
	}
}

// A header is read as far as it is there.
func TestHeader(t *testing.T) {
	four := append([]byte{0x45, 9: unix.IPPROTO_TCP, 12: 10, 13: 1, 15: 1, 16: 10, 17: 1, 19: 2}, 0x80, 0, 0x15, 0x38)
	six := append([]byte{0: 0x60, 6: unix.IPPROTO_ICMPV6, 8: 0xfd, 23: 1, 24: 0xfd, 39: 2}, 128, 0)
	late := bytes.Clone(four)
	late[7] = 1 // offset of a fragment
	for _, c := range []struct {
		b    []byte
		want Packet
	}{
		{four, Packet{From: netip.MustParseAddr("10.1.0.1"), To: netip.MustParseAddr("10.1.0.2"), Protocol: 6, Port: 5432}},
		{four[:22], Packet{From: netip.MustParseAddr("10.1.0.1"), To: netip.MustParseAddr("10.1.0.2"), Protocol: 6}},
		{late, Packet{From: netip.MustParseAddr("10.1.0.1"), To: netip.MustParseAddr("10.1.0.2"), Protocol: 6}},
		{six, Packet{From: netip.MustParseAddr("fd00::1"), To: netip.MustParseAddr("fd00::2"), Protocol: 58, Port: 128}},
		{four[:19], Packet{}},
		{nil, Packet{}},
	} {
		var got Packet
		if got.header(c.b); got != c.want {
			t.Errorf("% x is %+v, want %+v", c.b, got, c.want)
		}
	}
}

// FuzzDecode reads messages of any content.
func FuzzDecode(f *testing.F) {
	f.Add([]byte{8, 0, 12, 0, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, _, err := decode(b); err != nil && p.Port != 0 && p.Protocol == 0 {
			t.Errorf("a port without a protocol: %+v", p)
		}
	})
}

// rules loads rules of nft in the namespace of the test.
func rules(t *testing.T, text string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rules.nft")
	must(t, os.WriteFile(file, []byte(text), 0o600))
	nettest.Need(t, nettest.Program("nft"))
	t.Cleanup(func() { must(t, exec.Command("nft", "flush", "ruleset").Run()) })
	out, err := exec.Command("nft", "-f", file).CombinedOutput()
	if err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
}

func sendUDP(t *testing.T, to string, n int) {
	t.Helper()
	conn, err := net.Dial("udp", to)
	must(t, err)
	defer conn.Close() //nolint:errcheck // a test
	for range n {
		if _, err := conn.Write([]byte("x")); err != nil && !errors.Is(err, unix.EPERM) { // the rule drops it
			t.Fatal(err)
		}
	}
}

const telling = `table inet t { counter c { }
	chain out { type filter hook output priority 0; udp dport 9 counter name c log prefix "patchbay egress denied" group 9472 snaplen 64 drop
	}
}`

// The kernel's messages come with their prefix and ports. A second listener is refused while the first one lives.
func TestListen(t *testing.T) {
	rules(t, telling)
	l, err := Listen(9472)
	must(t, err)
	if _, err := Listen(9472); !errors.Is(err, unix.EPERM) {
		t.Errorf("a second listener got %v, want EPERM", err)
	}
	sendUDP(t, "127.0.0.1:9", 40)
	var got []Packet
	for len(got) < 40 {
		list, lost, err := l.Receive()
		must(t, err)
		if lost > 0 {
			t.Errorf("%d packets were lost", lost)
		}
		got = append(got, list...)
	}
	for _, p := range got {
		p.Time = time.Time{}
		home := netip.MustParseAddr("127.0.0.1")
		if want := (Packet{Prefix: "patchbay egress denied", From: home, To: home, Protocol: 17, Port: 9}); p != want {
			t.Errorf("got %+v, want %+v", p, want)
		}
	}
	must(t, l.Close())
	again, err := Listen(9472)
	must(t, err)
	must(t, again.Close())
}

// What does not fit into the socket is counted by the numbers of the messages.
func TestLostIsCounted(t *testing.T) {
	rules(t, telling)
	l, err := Listen(9472)
	must(t, err)
	defer l.Close() //nolint:errcheck // a test
	must(t, l.conn.SetReadBuffer(4096))
	const sent = 3000
	sendUDP(t, "127.0.0.1:9", sent)
	got, lost := drain(t, l)
	if got == sent {
		t.Fatalf("all %d packets fit into the socket", sent)
	}
	sendUDP(t, "127.0.0.1:9", 1) // the gap shows with the next message
	more, late := drain(t, l)
	if sum := got + more + int(lost+late); sum != sent+1 {
		t.Errorf("got %d and lost %d packets, together %d, want %d", got+more, lost+late, sum, sent+1)
	}
}

// drain receives until nothing comes for a while.
func drain(t *testing.T, l *Listener) (got int, lost uint64) {
	for {
		must(t, l.conn.SetReadDeadline(time.Now().Add(5*waits*10*time.Millisecond)))
		list, n, err := l.Receive()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return got, lost
		}
		must(t, err)
		got, lost = got+len(list), lost+n
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
		Group: 9472, Listener: l, Failed: func(error) {}, Explain: func(p Packet) drops.Drop {
			return drops.Drop{Direction: in.Direction, Cause: in.Cause, From: drops.End{Address: p.From}, To: drops.End{Address: p.To, Pod: "shop/b"}}
		},
		Counters: func() (map[Kind]uint64, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			return maps.Clone(f.counters), nil
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { f.serve(ctx, &wg) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	must(t, f.count())
	return f
}

func (f *fake) drop(told, more int) {
	f.mu.Lock()
	f.counters[in] += uint64(told + more)
	f.mu.Unlock()
	f.receive(slices.Repeat([]Packet{{From: netip.MustParseAddr("10.1.0.1"), To: netip.MustParseAddr("10.1.0.2")}}, told), 0)
}

// A client gets the former lines and the totals; one that follows gets new lines, too.
func TestServe(t *testing.T) {
	f := newFake(t)
	f.drop(3, 4)
	var got []drops.Line
	must(t, drops.Ask(t.Context(), f.path, drops.Request{Last: 2}, func(l drops.Line) error { got = append(got, l); return nil }))
	if len(got) != 3 || got[2].Totals == nil {
		t.Fatalf("got %+v", got)
	}
	if s := got[2].Totals; s.Counted != 7 || s.Shown != 3 || s.NotShown != 4 {
		t.Errorf("totals are %+v", s)
	}
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	must(t, drops.Ask(ctx, f.path, drops.Request{Follow: true, End: "shop/b"}, func(drops.Line) error {
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
	err = drops.Ask(t.Context(), f.path+"x", drops.Request{}, nil)
	if !errors.Is(err, drops.ErrDial) {
		t.Errorf("without an agent: %v", err)
	}
}
