// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package networks

import (
	"context"
	"fmt"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// What a pod without further networks pays, in a process that stays.
func BenchmarkNothing(b *testing.B) {
	ns := nettest.NewNS(b, "bench")
	call := &spec.Call{
		Verb: spec.Add, ContainerID: "c1", NetNS: ns, IfName: "eth0", Args: podArgs, Path: []string{"/nonexistent"},
		Config: fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"alone","type":"networks",
			"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"kubernetes.io/config.source":"api"}},
			"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":%q}]}}`, ns),
	}
	in := plugin.Builtin{NewSession: func() *plugin.Session { return plugin.NewSession([]*plugin.Plugin{&Plugin}) }}
	for b.Loop() {
		if _, err := in.Invoke(context.Background(), name, call); err != nil {
			b.Fatal(err)
		}
	}
}

// An ADD and a DEL of a pod with none, one and three further networks.
func BenchmarkNetworks(b *testing.B) {
	define(b, "shop/store", store)
	for _, annotation := range []string{"", "store", "store,store,store"} {
		b.Run(fmt.Sprintf("annotation=%q", annotation), func(b *testing.B) {
			w := &world{ns: nettest.NewNS(b, fmt.Sprint("bench", worlds.Add(1))), annotation: fmt.Sprintf("%q", annotation), tape: &tape{}}
			for b.Loop() {
				for _, verb := range []spec.Verb{spec.Add, spec.Del} {
					if _, err := w.call(verb, ""); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
