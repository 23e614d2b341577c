// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/spec"
)

// podman publishes a container's ports for each of its networks. The attachment that came last
// has the ports. When it is removed, the other one gets them. No order of DELs closes the ports
// too early or leaves them open.
func TestTwoNetworksOfOneContainer(t *testing.T) {
	n, web, other := world(t)
	one, two, stranger := of(web), of(web), of(other)
	two.network = "net2"
	answers := func(about, want string) {
		t.Helper()
		expect(t, about, n.Client, "tcp", node.Uplink4+":8080", want)
	}
	one.must(t, spec.Add, ports(both))
	for range 2 {
		two.must(t, spec.Add, ports(both))
		one.must(t, spec.Check, ports(both))
		two.must(t, spec.Check, ports(both))
		if err := stranger.call(t, spec.Add, ports(both)); err == nil {
			t.Error("another container got the port")
		}
		answers("both attached", "web "+node.Client4)
		two.must(t, spec.Del, "{}")
		answers("second detached", "web "+node.Client4)
		one.must(t, spec.Check, ports(both))
	}
	two.must(t, spec.Add, ports(both))
	one.must(t, spec.Del, "{}")
	answers("first detached", "web "+node.Client4)
	two.must(t, spec.Check, ports(both))
	two.must(t, spec.Del, "{}")
	answers("both detached", "refused")
	if left := elements(t); left != 0 {
		t.Errorf("%d elements are left", left)
	}
}

// Of three attachments the second is removed first. The third keeps the ports, and leaves them to
// the first.
func TestThreeNetworksOfOneContainer(t *testing.T) {
	n, web, _ := world(t)
	all := []*attachment{of(web), of(web), of(web)}
	for i, a := range all {
		a.network = []string{"net", "net2", "net3"}[i]
		a.must(t, spec.Add, ports(both))
	}
	for _, i := range []int{1, 2} {
		all[i].must(t, spec.Del, "{}")
		expect(t, "detached "+all[i].network, n.Client, "tcp", node.Uplink4+":8080", "web "+node.Client4)
		for e := range strings.Lines(nftTool(t, "list", "table", "inet", "patchbay")) {
			if strings.Contains(e, " "+all[i].network+"/") {
				t.Errorf("%s is gone and has %s", all[i].network, e)
			}
		}
	}
	all[0].must(t, spec.Del, "{}")
	nothingLeft(t)
}
