// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"encoding/json"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/patchbay-net/patchbay/daemons/test/chaos"
)

// simulate runs a test with a calm cluster, whose hosts all act on the networks.
func simulate(t *testing.T, test func(t *testing.T, c *cluster)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(&chaos.Schedule{Rand: rand.New(rand.NewPCG(1, 0))}, dir)
		c.calm = true
		for len(c.hosts) < 3 { // one more than the network few has blocks
			c.join()
		}
		c.work(4)
		must(t, c.Laws())
		test(t, c)
	})
}

// While a network is replaced, another host takes the block of a host that is dead for long. The dead host does not
// count as a second host with this block when all others act on the new network.
func TestBlockOfADeadHostWhileReplaced(t *testing.T) {
	simulate(t, func(t *testing.T, c *cluster) {
		dead := c.hosts[1]
		block := dead.block("few")
		dead.stop()
		dead.dead, c.removed["few"] = true, true
		for end := time.Now().Add(longTTL(reclaimAfter) + time.Hour); time.Now().Before(end); {
			c.keep()
			c.s.Pass(time.Hour)
			c.store.Expire()
		}
		c.work(4)
		must(t, c.Laws())
		if c.hosts[2].block("few") != block || c.removed["few"] {
			t.Fatalf("host3 has %v, want %v; the network is replaced: %v", c.hosts[2].block("few"), block, c.removed["few"])
		}
		must(t, c.Laws())
	})
}

// A living host keeps its block while the network is replaced.
func TestBlockOfALivingHostWhileReplaced(t *testing.T) {
	simulate(t, func(t *testing.T, c *cluster) {
		c.removed["few"] = true
		for _, b := range c.stored() {
			if b.Network == "few" && b.Node == c.hosts[1].agent.ID() {
				data, err := json.Marshal(map[string]any{"object": b})
				must(t, err)
				c.deleted(c.hosts[0], "blocks", b.Key(), data)
			}
		}
		if c.broken == nil {
			t.Error("a host deleted the block of a living one, and no law was broken")
		}
	})
}

// All hosts act on the network of a backup, although the operator created another one since. When the store is
// emptied, and the operator creates that one again, it replaces the former on each host.
func TestNetworkOfABackupReplaced(t *testing.T) {
	simulate(t, func(t *testing.T, c *cluster) {
		backup := c.store.Backup()
		c.remove("few")
		c.create("few", 1)
		c.wipe(func() { c.store.Restore(backup) })
		c.work(4)
		must(t, c.Laws())
		must(t, c.Laws()) // the exception has ended
		c.wipe(c.store.Empty)
		c.work(2)
		must(t, c.Laws())
		before := c.hosts[0].block("few")
		if !before.IsValid() || c.removed["few"] {
			t.Fatalf("host1 gives out %v; the network is replaced: %v", before, c.removed["few"])
		}
		c.operateCalmly()
		c.work(4)
		must(t, c.Laws())
		if now := c.hosts[0].block("few"); now == before {
			t.Errorf("host1 still gives out %v", now)
		}
	})
}
