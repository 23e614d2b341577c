// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
)

// earlierEnv names the plugin directory of an earlier build (scripts/earlier makes one). If it is
// set, that build is the older one and this build the newer one. Otherwise this build is the
// older one, and the newer one writes the next schema.
const earlierEnv = "PATCHBAY_EARLIER"

// nextSchema returns the flags of a build that writes the next schema of our nftables table.
func nextSchema() string {
	return fmt.Sprintf("-X github.com/patchbay-net/patchbay/internal/nft.schemaNumber=%d", nft.Schema()+1)
}

// twoBuilds are the plugin directories of two builds with different schemas.
func twoBuilds(t *testing.T) (older, newer string) {
	t.Helper()
	own, next := os.Getenv(workEnv)+"/bin", os.Getenv(workEnv)+"/newer"
	if older = os.Getenv(earlierEnv); older != "" {
		return older, own
	}
	if os.Getenv(insideEnv) == "" {
		if err := install(next, nextSchema()); err != nil {
			t.Fatal(err)
		}
	}
	return own, next
}

// TestTwoSchemas runs two builds on one node whose nftables tables have different schema numbers.
// The newer build upgrades the table while containers are attached, and works with it. The older
// build then refuses an ADD before it changes anything, and says why. It detaches what has
// nothing in the newer table, and breaks nothing. The documented way back gives every attachment
// to the older build.
func TestTwoSchemas(t *testing.T) {
	older, newer := twoBuilds(t)
	onNode(t, func(t *testing.T) {
		newOutside(t)
		serve(t, outside, 80)
		t.Run("older first", func(t *testing.T) { upgrade(t, older, newer) })
		run(t, "nft", "delete", "table", "inet", "patchbay")
		t.Run("newer first", func(t *testing.T) { downgrade(t, older, newer) })
		t.Run("back", func(t *testing.T) { back(t, older, newer) })
	})
}

// upgrade runs the newer build on a node of the older one.
func upgrade(t *testing.T, olderDir, newerDir string) {
	n, older, newer := newNetwork(t, "bridge", "1.1.0"), call(t, olderDir), call(t, newerDir)
	before := leak.Must(t)
	one := attach(t, older, n, "one", 18081)
	two := attach(t, newer, n, "two", 18082)
	for _, p := range []*pod{one, two} {
		newer.check(n, p)
		reaches(t, outside, node4, p.hostPort, outside4)
	}
	refuse(t, older, newer, n)
	for _, p := range []*pod{one, two} {
		reaches(t, outside, node4, p.hostPort, outside4)
		newer.del(n, p)
		refused(t, outside, node4, p.hostPort)
	}
	leak.NoLeaks(t, before)
}

// downgrade runs the older build on a node of the newer one, as after a rollback. The older
// build's DEL fails and says why, and the newer build finishes it. Other attachments are not
// affected.
func downgrade(t *testing.T, olderDir, newerDir string) {
	n, older, newer := newNetwork(t, "bridge", "1.1.0"), call(t, olderDir), call(t, newerDir)
	before := leak.Must(t)
	one, two := attach(t, newer, n, "one", 18081), attach(t, newer, n, "two", 18082)
	refuse(t, older, newer, n)
	namesSchemas(t, "STATUS", older.cni.GetStatusNetworkList(context.Background(), n.list))
	reaches(t, outside, node4, one.hostPort, outside4)
	newer.check(n, one)

	if err := older.cni.DelNetworkList(context.Background(), n.list, one.runtimeConf()); err == nil {
		t.Error("DEL of the older build succeeded beside a newer table")
	}
	reaches(t, outside, node4, two.hostPort, outside4)
	newer.check(n, two)
	newer.del(n, one)
	newer.del(n, two)
	leak.NoLeaks(t, before)
}

// back returns a node to the older build, as docs/adr/0003 says. The newer build detaches what it
// attached, the table is removed, and the older build's repair makes its own table.
func back(t *testing.T, olderDir, newerDir string) {
	n, older, newer := newNetwork(t, "bridge", "1.1.0"), call(t, olderDir), call(t, newerDir)
	run(t, "nft", "delete", "table", "inet", "patchbay")
	before := leak.Must(t)
	one, two := attach(t, older, n, "one", 18081), attach(t, newer, n, "two", 18082)
	newer.del(n, two)
	run(t, "nft", "delete", "table", "inet", "patchbay")
	run(t, olderDir+"/patchbay", "repair")
	three := attach(t, older, n, "three", 18083)
	for _, p := range []*pod{one, three} {
		older.check(n, p)
		reaches(t, outside, node4, p.hostPort, outside4)
		older.del(n, p)
		refused(t, outside, node4, p.hostPort)
	}
	leak.NoLeaks(t, before)
}

// namesSchemas checks that the older build refuses and names both numbers.
func namesSchemas(t *testing.T, verb string, err error) {
	t.Helper()
	if err == nil {
		t.Errorf("%s of the older build succeeded beside a newer table", verb)
		return
	}
	for _, want := range []string{"has schema ", "knows up to "} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s of the older build: the refusal lacks %q: %v", verb, want, err)
		}
	}
}

// attach attaches a pod that answers probes.
func attach(t *testing.T, c *caller, n *network, id string, port uint16) *pod {
	t.Helper()
	p := newPod(t, id, port)
	c.add(n, p)
	serve(t, p.id, 80)
	return p
}

// refuse checks that an ADD of the older build fails and names both schema numbers. The runtime
// then calls DEL, which may fail too with the older build. The node does not change.
func refuse(t *testing.T, older, newer *caller, n *network) {
	t.Helper()
	before := leak.Must(t)
	p := newPod(t, "refused", 18099)
	_, err := older.cni.AddNetworkList(context.Background(), n.list, p.runtimeConf())
	namesSchemas(t, "ADD", err)
	if err := older.cni.DelNetworkList(context.Background(), n.list, p.runtimeConf()); err != nil {
		namesSchemas(t, "DEL", err)
	}
	newer.del(n, p)
	deleteNamespace(t, p.id)
	leak.NoLeaks(t, before)
}

// TestRepair flushes the whole firewall while containers are attached, as the restart of a
// firewall does. `patchbay repair` restores our part.
func TestRepair(t *testing.T) {
	onNode(t, func(t *testing.T) {
		newOutside(t)
		serve(t, outside, 80)
		for _, main := range []string{"bridge", "ptp"} {
			t.Run(main, func(t *testing.T) {
				n, c := newNetwork(t, main, "1.1.0"), call(t, plugins())
				before := leak.Must(t)
				one, two := attach(t, c, n, "one", 18080), attach(t, c, n, "two", 18081)
				standing := leak.Must(t)
				for range 2 { // the second time, nothing of ours is left but records
					run(t, "nft", "flush", "ruleset")
					refused(t, outside, node4, one.hostPort)
					if err := c.cni.CheckNetworkList(context.Background(), n.list, one.runtimeConf()); err == nil {
						t.Error("CHECK does not notice that the firewall was flushed")
					}
					run(t, patchbay(), "repair")
					proveTraffic(t, n, one, two)
					for _, p := range []*pod{one, two} {
						c.check(n, p)
					}
					leak.NoLeaks(t, standing)
					if lost := standing.Beyond(leak.Must(t)); len(lost) > 0 {
						t.Errorf("repair did not put back:\n%s", lost)
					}
				}
				c.del(n, one)
				c.del(n, two)
				leak.NoLeaks(t, before)
			})
		}
	})
}
