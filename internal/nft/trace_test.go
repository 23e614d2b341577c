// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func here(protocol int) (int, error) {
	return unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
}

// datagrams is the match of datagrams with this text.
func datagrams(text string) TraceMatch {
	return TraceMatch{Protocol: unix.IPPROTO_UDP, Offset: 8, Value: []byte(text)}
}

// tells sends a datagram to the loopback address, and returns the chains that the kernel tells.
func tells(t *testing.T, tr *Trace, text string) (chains []string) {
	t.Helper()
	c, err := net.Dial("udp", "127.0.0.1:9")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // a test
	if _, err := c.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	list, err := tr.Events() // the loopback device has delivered when the call returns, unless the machine is busy
	for end := time.Now().Add(time.Second); err == nil && len(list) < 4 && time.Now().Before(end); {
		var more []TraceEvent
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(tr.Fd()), Events: unix.POLLIN}}, 50)
		more, err = tr.Events()
		list = append(list, more...)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if e.Table == TraceTable && !slices.Contains(chains, e.Chain) {
			chains = append(chains, e.Chain)
		}
	}
	return chains
}

// TestTrace marks a packet, with an owner of the table and, as on kernels before 5.12, without one.
func TestTrace(t *testing.T) {
	const unknown = 0x80 // a flag that no kernel knows
	for name, flags := range map[string]byte{"owner": tableFlagOwner, "expiry": unknown} {
		t.Run(name, func(t *testing.T) {
			for range 2 { // what the first one left does not stop the second
				tr := &Trace{flags: flags}
				if err := tr.open(here, []TraceMatch{datagrams("mark me.")}); err != nil {
					t.Fatal(err)
				}
				if got := tr.flags == 0; got != (flags == unknown) {
					t.Errorf("without an owner: %v", got)
				}
				if got := strings.Join(tells(t, tr, "mark me."), " "); !strings.HasPrefix(got, "output_begin output_end postrouting_begin postrouting_end") {
					t.Errorf("the kernel tells %q", got)
				}
				if got := tells(t, tr, "not me.."); len(got) > 0 {
					t.Errorf("another packet was marked: %q", got)
				}
				if flags == unknown { // as after kill -9
					tr.flags = tableFlagOwner
				}
				if err := tr.Close(); err != nil {
					t.Error(err)
				}
				if left := strings.Contains(nftTool(t, "list", "tables"), TraceTable); left != (flags == unknown) {
					t.Errorf("left behind: %v", left)
				}
			}
		})
	}
	tr, err := OpenTrace(here, datagrams("mark me."))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenTrace(here, datagrams("mark me.")); err == nil {
		t.Error("two traces at once")
	}
	if err := tr.Close(); err != nil {
		t.Error(err)
	}
	if got := nftTool(t, "list", "tables"); strings.Contains(got, TraceTable) {
		t.Errorf("left behind: %s", got)
	}
}
