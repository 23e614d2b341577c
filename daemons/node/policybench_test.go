// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/internal/burst"
	"github.com/patchbay-net/patchbay/daemons/node/policies"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
)

func listOf(n int, one func(i int) string) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for i := range n {
			if !yield([]byte(one(i)), nil) {
				return
			}
		}
	}
}

// BenchmarkProgram changes one policy, beside 20,000 pods, and puts it in force.
func BenchmarkProgram(b *testing.B) {
	for _, count := range []int{1000, 5000} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			dir := b.TempDir()
			o := &Options{Paths: paths.Paths{State: dir, Run: dir}}
			o.Node = "n1"
			a := &Agent{opts: *o}
			a.trouble.changed = func() {}
			a.trouble.problems.Log = b.Logf
			a.metrics = newMetrics(a)
			n := newNetworkPolicy(o, newPolicyStatus(a))
			fw := nft.Open(dir)
			defer fw.Close() //nolint:errcheck // committed
			n.enforcer = enforce.New(fw, enforce.Options{})
			defer n.enforcer.Clear(context.Background()) //nolint:errcheck // the namespace ends
			for k, list := range map[policies.Kind]iter.Seq2[[]byte, error]{
				policies.Pods: listOf(20000, func(i int) string { return manyPod(i, 0) }), policies.NetworkPolicies: listOf(count, manyPolicy), policies.ClusterNetworkPolicies: listOf(0, nil),
				policies.Nodes: listOf(200, func(i int) string { return fmt.Sprintf(`{"metadata":{"name":"n%d"}}`, i+1) }),
				policies.Namespaces: listOf(200, func(i int) string {
					return fmt.Sprintf(`{"metadata":{"name":"team-%d","labels":{"team":"t%d"}}}`, i, i%20)
				}),
			} {
				if err := n.cluster.Replace(k, list); err != nil {
					b.Fatal(err)
				}
			}
			i := 0
			next := make(chan bool)
			done := make(chan error)
			go n.cluster.Follow(b.Context(), burst.Wait{}, func() { <-next; n.attach() }, func(s *policy.State) error {
				err := n.program(b.Context(), s)
				done <- err
				return err
			})
			step := func() {
				i++
				if err := n.cluster.Set(policies.NetworkPolicies, []byte(strings.Replace(manyPolicy(0), `"http"`, fmt.Sprint(1+i%60000), 1))); err != nil {
					b.Fatal(err)
				}
				next <- true
				if err := <-done; err != nil {
					b.Fatal(err)
				}
			}
			step()
			b.ReportAllocs()
			for b.Loop() {
				step()
			}
		})
	}
}
