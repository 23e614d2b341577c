// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// icmp6 sends an ICMPv6 packet, and reports whether the other end gets it.
func (p *pair) icmp6(kind byte, hops int, from, to string) bool {
	p.t.Helper()
	open := func(h *house) (fd int) {
		must(p.t, h.Do(func() (err error) {
			fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
			return err
		}))
		return fd
	}
	in, out := open(p.server), open(p.client)
	defer unix.Close(in)  //nolint:errcheck // a test
	defer unix.Close(out) //nolint:errcheck // a test
	wait := unix.NsecToTimeval(int64(100 * time.Millisecond))
	must(p.t, unix.SetsockoptTimeval(in, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait))
	must(p.t, unix.SetsockoptInt(out, unix.SOL_IPV6, unix.IPV6_UNICAST_HOPS, hops))
	must(p.t, unix.Bind(out, &unix.SockaddrInet6{Addr: netip.MustParseAddr(from).As16()}))
	packet := append([]byte{kind, 0, 0, 0, 0, 0, 0, 0}, []byte("patchbay covert ")...)
	must(p.t, unix.Sendto(out, packet, 0, &unix.SockaddrInet6{Addr: netip.MustParseAddr(to).As16()}))
	for {
		b := make([]byte, 100)
		n, _, err := unix.Recvfrom(in, b, 0)
		if err != nil {
			return false
		}
		if n == len(packet) && b[0] == kind && slices.Equal(b[8:n], packet[8:]) {
			return true
		}
	}
}

// A routed packet with a type of neighbour discovery or multicast listener discovery is not accepted as
// such: otherwise isolated pods could speak with anybody.
func TestRoutedDiscovery(t *testing.T) {
	p := newPair(t, Options{})
	kinds := []byte{130, 131, 132, 133, 134, 135, 136, 137, 143}
	p.load()
	for _, kind := range kinds {
		passes := false
		if until(func() bool { passes = p.icmp6(kind, 255, "fd01::1:1", "fd01::1:2"); return passes }); !passes {
			t.Errorf("type %d does not pass without policies", kind)
		}
	}
	for _, policies := range []string{
		`shop/none {"podSelector":{},"policyTypes":["Egress"]}`, `shop/none {"podSelector":{},"policyTypes":["Ingress"]}`,
	} {
		p.load(policies)
		for _, kind := range kinds {
			if p.icmp6(kind, 255, "fd01::1:1", "fd01::1:2") {
				t.Errorf("type %d passes %s", kind, policies)
			}
		}
	}
}
