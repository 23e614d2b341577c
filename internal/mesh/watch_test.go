// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
)

// A node has many routes. Watch tells apart those that can be in the way of a block.
func TestCrosses(t *testing.T) {
	var m Mesh
	m.expect(State{Routes: []Route{
		{Dst: netip.MustParsePrefix("10.40.2.0/24")}, {Dst: netip.MustParsePrefix("fd40:2::/64")},
		{Dst: netip.MustParsePrefix("10.40.0.0/16"), Refused: true},
	}})
	for _, c := range []struct {
		dst      string
		protocol netlink.RouteProtocol
		table    int
		want     bool
	}{
		{"10.40.2.0/24", unix.RTPROT_BOOT, unix.RT_TABLE_MAIN, true},
		{"10.40.2.128/25", unix.RTPROT_BOOT, unix.RT_TABLE_MAIN, true},
		{"10.40.2.9/32", unix.RTPROT_BOOT, 52, true}, // a rule may lead to any table
		{"fd40:2::/64", unix.RTPROT_BOOT, unix.RT_TABLE_MAIN, true},
		{"fd40:2::7/128", unix.RTPROT_BOOT, unix.RT_TABLE_MAIN, true},
		{"10.40.0.0/16", unix.RTPROT_BOOT, unix.RT_TABLE_MAIN, true},    // the refused range itself
		{"10.40.1.9/32", unix.RTPROT_KERNEL, unix.RT_TABLE_MAIN, false}, // a container of this host, in that range
		{"10.40.3.0/24", unix.RTPROT_BOOT, unix.RT_TABLE_MAIN, false},
		{"10.40.2.0/23", unix.RTPROT_BOOT, unix.RT_TABLE_MAIN, false},  // ours is longer
		{"10.40.2.0/23", unix.RTPROT_KERNEL, unix.RT_TABLE_MAIN, true}, // neighbours on a link
		{"10.40.2.0/23", unix.RTPROT_KERNEL, unix.RT_TABLE_LOCAL, false},
		{"ff00::/8", unix.RTPROT_KERNEL, unix.RT_TABLE_LOCAL, false},
		{"fd00::/8", unix.RTPROT_BOOT, unix.RT_TABLE_MAIN, false},
	} {
		r := &netlink.Route{Dst: nl.IPNet(netip.MustParsePrefix(c.dst)), Protocol: c.protocol, Table: c.table}
		if got := m.crosses(r); got != c.want {
			t.Errorf("%s proto %d table %d: %v", c.dst, c.protocol, c.table, got)
		}
	}
	if m.crosses(&netlink.Route{}) {
		t.Error("a route without a destination")
	}
}

// Watch does not see changes from before its start, for example since an earlier Watch failed. So
// it first reports that something may have changed.
func TestWatchBegins(t *testing.T) {
	l := newLab(t)
	h := l.hosts[0]
	for range 2 {
		ctx, cancel := context.WithCancel(ctx)
		changed, ended := make(chan bool, 1000), make(chan error, 1)
		go func() { ended <- h.conn.Do(func() error { return h.mesh.Watch(ctx, func() { changed <- true }) }) }()
		reported(t, "the beginning", changed)
		cancel()
		must(t, <-ended)
	}
}
