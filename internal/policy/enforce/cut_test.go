// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"slices"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/policy"
)

// bothWays begins a policy that isolates the server in both directions. Then the server cannot go on with a
// connection of which the kernel has no entry.
const bothWays = `shop/b {"podSelector":{"matchLabels":{"pod":"b"}},"policyTypes":["Ingress","Egress"],"ingress":[`

// A Cut works while the next programs come. A connection that the latest one allows does not end, although the
// program of the Cut denies it.
func TestCutOfEarlierProgram(t *testing.T) {
	p := newPair(t, Options{CutLater: true})
	p.serve(":80")
	p.load(bothWays + fromA81 + "]}")
	c := p.enforcer.DrainCut()
	if c == nil {
		t.Fatal("nothing is to be cut")
	}
	p.load(bothWays + fromA80 + "," + fromA81 + "]}")
	p.lives(c)
}

// The connections of a pod that has an address again do not end, whether the Cut is running or has failed.
func TestCutOfReturnedAddress(t *testing.T) {
	for name, failed := range map[string]bool{"on its way": false, "failed": true} {
		t.Run(name, func(t *testing.T) { cutOfReturnedAddress(t, failed) })
	}
}

func cutOfReturnedAddress(t *testing.T, failed bool) {
	p := newPair(t, Options{CutLater: true})
	p.serve(":80")
	p.load(bothWays + fromA80 + "]}")
	p.enforcer.DrainCut()
	s := shop(t)
	s.Pods = slices.Clone(s.Pods[:1])
	must(t, p.node.Do(func() error { return p.enforcer.Load(t.Context(), policy.Compile(s), nil) }))
	c := p.enforcer.DrainCut()
	if c == nil || len(c.vacated) == 0 {
		t.Fatal("no pod has left")
	}
	p.load(bothWays + fromA80 + "]}")
	if failed {
		p.enforcer.GiveBack(c)
		c = p.enforcer.DrainCut()
	}
	p.lives(c)
}

// lives checks that a Cut does not end a connection to port 80 of the server.
func (p *pair) lives(c *Cut) {
	p.t.Helper()
	conn := p.dial("10.1.1.2:80")
	defer conn.Close() //nolint:errcheck // a test
	if !conn.asks(5 * time.Second) {
		p.t.Fatal("a connection that is allowed does not work")
	}
	must(p.t, p.node.Do(func() error { return c.Do(p.enforcer.Update) }))
	if !conn.asks(time.Second) {
		p.t.Error("the connection ended, although the program in force allows it")
	}
}
