// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"encoding/binary"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

// until waits for a condition.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(8 * patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %s", what, 8*patience)
		}
	}
}

func (h *host) txChecksum() bool {
	h.t.Helper()
	on, err := h.conn.TxChecksum(DefaultDevice)
	must(h.t, err)
	return on
}

// counted returns the number of packets that the rule of a host's table "probe" has seen.
func (h *host) counted() string {
	return regexp.MustCompile(`packets (\d+)`).FindStringSubmatch(h.sh("nft list table inet probe"))[1]
}

// A kernel or card corrupts the checksum of TCP within the tunnel. The offload goes off, once,
// and stays off. If a firewall drops TCP, or if the tunnel works, the offload stays on.
func TestOffload(t *testing.T) {
	needVXLAN(t)
	nettest.Need(t, nettest.Program("nft"))
	for _, tc := range []struct {
		name, rule string // of host 4
		broken     bool
	}{
		{"intact", "tcp dport 9 counter", false},
		{"firewall", "tcp dport 9 counter drop", false},
		{"broken", "tcp dport 9 counter", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLab(t)
			u := setup{VXLAN, "4"}
			h1, h4 := l.hosts[0], l.hosts[3]
			u.all(h1, h4)
			h4.sh("nft 'table inet probe { chain in { type filter hook input priority 0; " + tc.rule + "; }; }'")
			if tc.broken {
				l.router.sh(fmt.Sprintf("nft 'table inet broken { chain f { type filter hook forward priority 0; udp dport 4789 @th,688,16 %#x drop; }; }'", h1.partial(h4)))
			}
			stop := h1.probing(func() { u.sync(h1, h1, h4) })
			want := map[string]bool{"intact": true}[tc.name]
			switch tc.name {
			case "broken":
				until(t, "the offload is turned off", func() bool { return !h1.txChecksum() })
				until(t, "TCP passes", func() bool { return h4.counted() != "0" })
				u.sync(h1, h1)     // removes the device
				u.sync(h1, h1, h4) // makes it again, with the offload
				until(t, "the new device's offload is turned off", func() bool { return !h1.txChecksum() })
			case "firewall": // with the offload, then without
				until(t, "TCP is tried", func() bool { return len(h4.counted()) > 1 || h4.counted() >= "4" })
				want = true
			default:
				until(t, "TCP is tried", func() bool { return h4.counted() != "0" })
			}
			stop()
			if on := h1.txChecksum(); on != want {
				t.Errorf("offload is on: %v, want %v", on, want)
			}
			said := strings.Join(h1.warned, "\n")
			if strings.Contains(said, "checksum offload of patchbay-vx is turned off") != tc.broken || !tc.broken && said != "" {
				t.Errorf("said: %q", said)
			}
			h1.mesh.Close()
			h1.open()
			u.sync(h1, h1, h4)
			if on := h1.txChecksum(); on != want {
				t.Errorf("with a new agent it is on: %v, want %v", on, want)
			}
			quiet(t, u, h1, h4)
		})
	}
}

// Many ends that do not answer take no longer than one, so the probes of path MTUs need not wait.
func TestOffloadOfSilentEnds(t *testing.T) {
	needVXLAN(t)
	l := newLab(t)
	u := setup{VXLAN, "4"}
	u.all(l.hosts[0], l.hosts[3])
	h1 := l.hosts[0]
	u.sync(h1, l.hosts...) // only host 4 has a mesh too
	o := &offloads{conn: h1.conn, warn: func(err error) { t.Error(err) }, tested: make(map[testedEnd]bool)}
	ends := h1.mesh.paths.tunnels()
	began := time.Now()
	h1.do(func() (err error) {
		if o.echo, err = openEcho(usual); err == nil {
			o.run(ctx, ends)
			o.echo.close()
		}
		return err
	})
	if took := time.Since(began); took > (rounds+1)*usual.round {
		t.Errorf("took %v, more than %d rounds", took, rounds)
	}
	for at, done := range o.tested {
		if !done || at.hop != NextHop(VTEP(l.hosts[3].id())) {
			t.Errorf("%v: tested %v", at, done)
		}
	}
	if len(ends) != 3 || len(o.tested) != 1 {
		t.Errorf("of the ends %v these were tested: %v", ends, o.tested)
	}
}

// partial returns the checksum field of a SYN to another host's end of the tunnel before a network
// card completes the checksum: the sum of the pseudo header. The links of the lab have no card that
// completes it.
func (h *host) partial(to *host) uint16 {
	src, dst := NextHop(VTEP(h.id())).As16(), NextHop(VTEP(to.id())).As16()
	const syn = 40 // bytes, with its options
	b := binary.BigEndian.AppendUint32(append(src[:], dst[:]...), syn)
	return ^checksum(binary.BigEndian.AppendUint32(b, unix.IPPROTO_TCP))
}
