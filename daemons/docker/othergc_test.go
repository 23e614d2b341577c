// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"testing"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/internal/paths"
)

// Another runtime runs GC on the same network, as containerd 2 does when it starts. It does not
// know Docker's containers, and leaves them alone. But it removes a lost attachment of its own.
func TestGCOfAnotherRuntime(t *testing.T) {
	n := newNode(t, portNet)
	network := n.network("ports")
	var docker []*container
	for i := range uint16(2) {
		docker = append(docker, n.mustStart(run{network: network, ports: []cnm.PortBinding{tcp(80, 8080+i, 8080+i)}}))
	}
	before, rules := addressFiles(t), n.left().Of("nft")
	p := paths.Default()
	other := func() (*chain.Runtime, *chain.List) {
		rt := chain.New(chain.WithPath(n.opts.Plugins...), chain.WithInvoker(n.opts.Invoker), chain.WithConfDir(n.opts.ConfDir), chain.WithRunDir(p.Run), chain.WithCacheDir(t.TempDir()))
		list, err := rt.Load("ports")
		must(t, err)
		return rt, list
	}
	rt, list := other()
	lost := chain.Attachment{ContainerID: "lost", NetNS: n.sandbox(), IfName: "eth0"}
	_, err := rt.Add(n.ctx(), list, lost)
	must(t, err)

	rt, list = other() // the new one has forgotten it
	must(t, rt.GC(n.ctx(), chain.Keep{List: list}))
	if after := addressFiles(t); len(after) != len(before) {
		t.Errorf("addresses were %v, are %v", before, after)
	}
	if after := n.left().Of("nft"); len(after) != len(rules) {
		t.Errorf("elements were\n%s\nare\n%s", rules, after)
	}
	if err := docker[0].reaches(docker[1], docker[1].iface.Address.Addr()); err != nil {
		t.Error(err)
	}
	for _, c := range docker {
		c.stop(true)
	}
	must(t, rt.GC(n.ctx(), chain.Keep{List: list}))
}
