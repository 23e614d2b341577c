// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/nft"
)

// A masqueraded container keeps its address towards exempt destinations. A change of the
// destinations applies to new connections. After a flush of the firewall they come back.
func TestExempt(t *testing.T) {
	l := newLab(t)
	u := setup{Routes, "46"}
	h1 := l.hosts[0]
	h1.masqueraded("10.40.1.5/16", "fd40:1::5/16")
	l.router.route("10.40.1.0/24", "192.0.2.1")
	l.router.route("fd40:1::/64", "2001:db8:1::1")
	apply := func(exempt ...string) {
		t.Helper()
		self := u.self(h1)
		for _, p := range exempt {
			self.Exempt = append(self.Exempt, netip.MustParsePrefix(p))
		}
		h1.do(func() error { return h1.mesh.Apply(ctx, self, u.peers(h1, l.hosts[1])) })
	}
	seen := func(when, want4, want6 string) {
		t.Helper()
		for dst, want := range map[string]string{"198.51.100.4": want4, "2001:db8:2::4": want6} {
			if got := ask(t, h1.container, l.hosts[3].space, dst); got != want {
				t.Errorf("%s, to %s: seen as %q, want %q", when, dst, got, want)
			}
		}
	}
	u.sync(l.hosts[1], l.hosts[:2]...)
	apply()
	seen("masqueraded", "192.0.2.1", "2001:db8:1::1")
	apply("198.51.100.4/30", "10.0.0.0/8")
	seen("with IPv4 exempt", "10.40.1.5", "2001:db8:1::1")
	apply("198.51.0.0/16", "2001:db8:2::/48")
	seen("with both exempt", "10.40.1.5", "fd40:1::5")
	h1.sh("nft flush set inet patchbay exempt4; nft flush set inet patchbay exempt6")
	seen("flushed by another program", "192.0.2.1", "2001:db8:1::1")
	apply("198.51.100.0/24", "2001:db8:2::4/128")
	seen("narrower, and restored", "10.40.1.5", "fd40:1::5")
	talk(t, l.hosts[:2]...)
	apply("198.51.100.128/25")
	seen("no longer exempt", "192.0.2.1", "2001:db8:1::1")
	h1.do(func() error { return h1.mesh.Clear(ctx, Self{}) })
	if left := h1.sh("nft list set inet patchbay exempt4"); strings.Contains(left, "elements") {
		t.Errorf("after Clear: %s", left)
	}
}

// masqueraded gives container addresses the elements of their attachment.
func (h *host) masqueraded(addresses ...string) {
	h.t.Helper()
	h.do(func() error {
		fw := nft.Open(h.paths.Run)
		defer fw.Close() //nolint:errcheck // a test
		for _, a := range addresses {
			fw.Add(nft.Masqueraded(netip.MustParsePrefix(a), nft.Comment("abcdefghijklmno", "net", "c1", "eth0"))...)
		}
		return fw.Commit(ctx)
	})
}

// With AnyPort, masqueraded connections of this host's containers come from random ports.
func TestAnyPort(t *testing.T) {
	l := newLab(t)
	u := setup{Routes, "46"}
	h1 := l.hosts[0]
	h1.masqueraded("10.40.1.5/16", "fd40:1::5/16")
	for _, random := range []bool{false, true, false} {
		self := u.self(h1)
		self.AnyPort = random
		h1.do(func() error { return h1.mesh.Apply(ctx, self, u.peers(h1, l.hosts[1])) })
		for _, dst := range []string{"198.51.100.4", "2001:db8:2::4"} {
			kept := 0
			const tries = 4
			for range tries {
				c := connect(t, h1.container, l.hosts[3].space, dst)
				from, as := c.near.LocalAddr().(*net.TCPAddr), c.far.RemoteAddr().(*net.TCPAddr)
				if as.IP.Equal(from.IP) {
					t.Errorf("to %s: %s is not masqueraded", dst, from)
				}
				if as.Port == from.Port {
					kept++
				}
				c.near.Close() //nolint:errcheck // a test
				c.far.Close()  //nolint:errcheck // a test
			}
			if random && kept > 1 || !random && kept < tries {
				t.Errorf("to %s, random: %v: %d of %d connections keep their port", dst, random, kept, tries)
			}
		}
	}
}
