// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import "testing"

// After a boot, the first ADD makes routes that refuse an encrypted network, before the agent runs. No gc
// removes these routes, and the agent takes them over. If the network is removed, they stay while the host
// has an address in it.
func TestRefusedWithoutNetwork(t *testing.T) {
	l := newLab(t)
	h := l.hosts[0]
	self := setup{WireGuard, "46"}.self(h)
	refused := func(what string, want int) {
		t.Helper()
		if list := h.list(t, "routes"); len(list) != want {
			t.Errorf("%s: %q, want %d routes", what, list, want)
		}
	}
	h.sh("ip route add unreachable 10.40.0.0/16 proto 112; ip route add unreachable fd40::/16 proto 112")
	h.do(func() error {
		list, err := h.mesh.Stale()
		if len(list) > 0 {
			t.Errorf("gc would remove %v", list)
		}
		return err
	})
	for i := range self.Subnets {
		self.Subnets[i].Encrypted = true
	}
	apply := func() { t.Helper(); h.do(func() error { return h.mesh.Apply(ctx, self, nil) }) }
	apply()
	refused("the agent runs", 2)
	open := self
	self.Subnets, self.Blocks = nil, nil
	apply()
	refused("the network is gone, and its containers run", 2)
	h.sh("ip addr flush dev cni0 scope global")
	apply()
	refused("they are gone, too", 0)

	self = open
	apply()
	refused("it was created again", 2)
	for i := range self.Subnets {
		self.Subnets[i].Encrypted = false
	}
	apply()
	refused("without encryption", 0)
}
