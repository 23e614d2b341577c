// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nflog

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
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
