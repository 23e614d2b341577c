// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"slices"
	"testing"

	"github.com/patchbay-net/patchbay/internal/policy"
)

// BenchmarkFirstPacket sends datagrams of a pod that has a policy for ingress, each of a new flow: with the rules that look
// for answers in flows that ended, without them, and for the base without policies. The metric is that of BenchmarkDrop.
func BenchmarkFirstPacket(b *testing.B) {
	isolated := policy.Compile(shop(b, `shop/a {"podSelector":{"matchLabels":{"pod":"a"}}}`))
	for _, c := range []struct {
		name    string
		program *policy.Program
		without bool
	}{{"none", policy.Compile(shop(b)), false}, {"former", isolated, true}, {"now", isolated, false}} {
		b.Run(c.name, func(b *testing.B) {
			p := newPair(b, Options{})
			must(b, p.node.Do(func() error {
				before, err := p.enforcer.before()
				must(b, err)
				w := stateOf(c.program, true)
				for name, lines := range w.lines {
					w.lines[name] = slices.DeleteFunc(lines, func(l line) bool { return c.without && l.what == answering })
				}
				checkSources(p.enforcer.fw, true, false)
				must(b, p.enforcer.fw.Commit(b.Context()))
				todo, err := planOf(before, w, nil)
				must(b, err)
				return p.enforcer.apply(b.Context(), todo)
			}))
			p.flood(b, 40000)
		})
	}
}
