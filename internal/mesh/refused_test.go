// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"net/netip"
	"strings"
	"testing"
)

// The routes that refuse whole networks are added, kept and removed, on any kernel.
func TestRefusedRoutes(t *testing.T) {
	l := newLab(t)
	h := l.hosts[0]
	s := State{Name: DefaultName, Protocol: DefaultProtocol, Subnets: setup{}.self(h).Subnets, Routes: []Route{
		{Dst: netip.MustParsePrefix("10.40.0.0/16"), Refused: true},
		{Dst: netip.MustParsePrefix("fd40::/16"), Refused: true},
	}}
	sync := func() { t.Helper(); h.do(func() error { return h.mesh.Sync(ctx, s) }) }
	sync()
	first := h.sh("ip route; ip -6 route")
	for _, want := range []string{"unreachable 10.40.0.0/16 proto 112", "unreachable fd40::/16 dev lo proto 112"} {
		if !strings.Contains(first, want) {
			t.Errorf("no %q in\n%s", want, first)
		}
	}
	settle(t, h)
	var events int
	h.do(func() error {
		sub, err := netlinkRoutes()
		if err != nil {
			return err
		}
		defer sub.Close()
		if err := h.mesh.Sync(ctx, s); err != nil {
			return err
		}
		events = len(messages(t, sub, 0))
		return nil
	})
	if events > 0 {
		t.Errorf("%d changes by a second Sync", events)
	}
	for _, to := range []string{"10.40.2.5:9", "[fd40:2::5]:9"} {
		h.unreachable("refused", to)
	}
	s.Routes = nil
	sync()
	if left := h.list(t, "routes"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
