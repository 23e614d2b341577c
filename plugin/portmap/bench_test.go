// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/spec"
)

// BenchmarkAttachment measures an ADD and a DEL of this plugin, in process, for the only
// attachment of its network. So every shared fact is created and removed.
func BenchmarkAttachment(b *testing.B) {
	n := node.New(b)
	c := n.Bridge("cni0", "10.1.0.1/24", "fd00:1::1/64").Container("web", "10.1.0.5/24", "fd00:1::5/64")
	for _, bc := range []struct{ name, conf string }{
		{"tcp", ports(webPort)},
		{"udp", ports(dns)},
		{"no snat", ports(webPort, `"snat": false`)},
	} {
		for _, verb := range []spec.Verb{spec.Add, spec.Del} {
			b.Run(bc.name+" "+string(verb), func(b *testing.B) {
				a := of(c)
				for b.Loop() {
					if verb == spec.Add {
						a.must(b, spec.Add, bc.conf)
						b.StopTimer()
						a.must(b, spec.Del, `{}`)
						b.StartTimer()
						continue
					}
					b.StopTimer()
					a.must(b, spec.Add, bc.conf)
					b.StartTimer()
					a.must(b, spec.Del, `{}`)
				}
			})
		}
	}
}
