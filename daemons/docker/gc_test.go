// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"os/exec"
	"testing"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cli/gc"
	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/test/reftest"
)

// nodeGC runs `patchbay gc --apply --grace 0s --from docker`. Docker's list has no container,
// because the ids with which we call plugins are never in it.
func (n *node) nodeGC() *gc.Report {
	n.Helper()
	p := paths.Default()
	report, err := gc.Run(n.ctx(), gc.Options{
		Paths: p, NewSession: session, Live: map[string]bool{}, Apply: true,
		Runtime: chain.New(chain.WithPath(n.opts.Plugins...), chain.WithInvoker(n.opts.Invoker), chain.WithCacheDir(p.CNI), chain.WithRunDir(p.Run)),
	})
	must(n, err)
	return report
}

// with makes the driver execute the plugins in dir, and our programs if dir does not have them. The
// chains that the reference's plugins never remove are removed at the end of the test. If dir is
// empty, with changes nothing.
func (n *node) with(dir string) {
	n.Helper()
	if dir == "" {
		return
	}
	n.stop()
	n.opts.Plugins, n.opts.Invoker = []string{dir, programs(n)}, nil
	n.boot()
	n.Cleanup(func() { must(n, exec.Command("nft", "flush", "ruleset").Run()) })
}

// patchbay gc removes nothing of the driver's. This holds at any point of an endpoint's life and
// with any plugins.
func TestNodeGCLeavesEndpoints(t *testing.T) {
	for name, dir := range map[string]string{"ours": "", "reference": reftest.Plugins(t)} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, portNet)
			n.with(dir)
			network := n.network("ports")
			a, err := n.begin(run{network: network, key: n.sandbox()}) // between two calls
			must(t, err)
			b := n.mustStart(run{network: network, ports: []cnm.PortBinding{tcp(80, 8080, 8080)}})
			before, rules := addressFiles(t), n.left().Of("nft")
			n.unremoved(n.nodeGC())
			if after := addressFiles(t); len(before) != 4 || len(after) != len(before) {
				t.Errorf("addresses were %v, are %v", before, after)
			}
			if after := n.left().Of("nft"); len(after) != len(rules) {
				t.Errorf("rules were\n%s\nare\n%s", rules, after)
			}
			must(t, a.joins(run{}))
			if err := a.reaches(b, b.iface.Address.Addr()); err != nil {
				t.Error(err)
			}
			a.stop(true)
			b.stop(true)
		})
	}
}

// An address that Docker has requested is kept until its endpoint comes.
func TestNodeGCLeavesLeases(t *testing.T) {
	for name, dir := range map[string]string{"ours": "", "reference": reftest.Plugins(t)} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, bridgeNet)
			n.with(dir)
			x := n.ipamNetwork("podnet")
			v4, err := x.address(0, "02:42:00:00:00:01", "")
			must(t, err)
			n.unremoved(n.nodeGC())
			if files := addressFiles(t); len(files) != 2 {
				t.Errorf("addresses: %v", files)
			}
			x.release(0, v4)
		})
	}
}

// The endpoint of a network could not be removed. The network is removed later, because Docker
// deletes it only once.
func TestNetworkDeletedLater(t *testing.T) {
	n := newNode(t, bridgeNet)
	network, err := n.createNetwork(map[string]string{optNetwork: "podnet"}, nil)
	must(t, err)
	c := n.mustStart(run{network: network})
	n.stop()
	opts := n.opts
	n.opts.Plugins, n.opts.Invoker = []string{t.TempDir()}, nil // without any plugin, so that DEL fails
	n.boot()
	if err := n.c.DeleteNetwork(n.ctx(), &cnm.NetworkRequest{NetworkID: network}); err == nil {
		t.Error("deleted without plugins")
	}
	n.stop()
	n.opts = opts
	n.boot()
	n.sweep(1)
	if nets, err := n.driver.state.Networks.List(); err != nil || len(nets) > 0 {
		t.Errorf("networks %s %v", asJSON(nets), err)
	}
	must(t, n.c.DeleteNetwork(n.ctx(), &cnm.NetworkRequest{NetworkID: network}))
	c.die()
}

func (n *node) unremoved(r *gc.Report) {
	n.Helper()
	for _, a := range r.Attachments {
		if a.Removed || a.State == gc.Dead {
			n.Errorf("%s: %s (%s)", a.Name(), a.State, a.Why)
		}
	}
}
