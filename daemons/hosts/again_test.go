// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"math/rand/v2"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/test/chaos"
)

// A network is created again before its host forgets the former block. When the network is removed
// again, the host removes its bridge again.
func TestBridgeOfCreatedAgain(t *testing.T) {
	c := newCluster(&chaos.Schedule{Rand: rand.New(rand.NewPCG(1, 0))}, t.TempDir())
	c.calm = true
	h := c.hosts[0]
	work := func(some ...func()) {
		t.Helper()
		for _, do := range some {
			h.catchUp()
			do()
		}
	}
	used := func() {
		t.Helper()
		work(h.tend, h.apply)
		must(t, h.add("lan"))
		h.attach(false)
	}
	work(h.tend)
	used()
	c.remove("lan")
	work(h.apply)
	if len(h.links.all) > 0 {
		t.Fatal("the bridge exists after the first time")
	}
	c.create("lan", 0)
	used()
	c.remove("lan")
	work(h.tend, h.apply)
	if len(h.links.all) > 0 {
		t.Errorf("%s is there, with %v", h.links.all[0].Name, h.links.all[0].addrs)
	}
}
