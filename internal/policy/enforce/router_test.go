// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// advertise sends a router advertisement from the client to all.
func (b *bridged) advertise() {
	from, to := netip.MustParseAddr("fe80::a"), netip.MustParseAddr("ff02::1")
	icmp := []byte{134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0}
	binary.BigEndian.PutUint16(icmp[2:], checksum(icmp, pseudo(from, to, unix.IPPROTO_ICMPV6, len(icmp))))
	packet := append([]byte{0x60, 0, 0, 0, 0, byte(len(icmp)), unix.IPPROTO_ICMPV6, 255}, from.AsSlice()...)
	b.raw(net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, nil, append(append(packet, to.AsSlice()...), icmp...))
}

// A pod does not become the router of others, closed or open.
func TestNoPodIsARouter(t *testing.T) {
	b := newBridged(t)
	for _, closed := range []bool{false, true} {
		b.sides([2]bool{closed, closed}, [2]bool{closed, closed})
		b.advertise()
		time.Sleep(200 * time.Millisecond)
		must(t, b.server.Do(func() error {
			out, err := exec.Command("ip", "-6", "route", "show", "default").CombinedOutput()
			if strings.Contains(string(out), "proto ra") {
				t.Errorf("closed %v: the other pod has %s", closed, out)
			}
			return err
		}))
	}
}
