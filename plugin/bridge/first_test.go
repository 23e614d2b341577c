// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/endpoint/endpointtest"
	"github.com/patchbay-net/patchbay/internal/nettest"
	"github.com/patchbay-net/patchbay/internal/nettest/node"
)

// quick is below the second that the kernel looks for duplicates at least, and
// after which a lost packet is sent again, and far above a round trip, also on an
// emulated machine.
const quick = 900 * time.Millisecond

// cautious undoes what a test's node does to save time: new links look for
// duplicates, which is the kernel's default.
func cautious(s *node.Space) { s.Sysctl("net/ipv6/conf/default/accept_dad", "1") }

func cautiousWorld(t *testing.T) *endpointtest.World {
	w := newWorld(t)
	cautious(w.Host)
	return w
}

// firstPackets holds that IPv6 flows through a fresh gateway at once, in both
// directions (pain 7): neither end waits for the kernel to look for duplicates
// of an address, be it a link-local one.
func firstPackets(t *testing.T, gateway, conf string) {
	t.Helper()
	w := cautiousWorld(t)
	pod := func(name, conf string) *endpointtest.Pod {
		p := w.Pod(name, conf)
		cautious(p.Space)
		return p
	}
	p := pod("a", conf+`"isDefaultGateway": true, `+endpointtest.Static("fd09::5/64")).Add()
	p.Serve("tcp", "[fd09::5]:80")
	start := time.Now()
	// First, because then the host must ask for the container with its link-local address.
	w.Want("outside to container", w.Client.Ask("tcp", "[fd09::5]:80"), "a "+node.Client6)
	if took := time.Since(start); took > quick {
		t.Errorf("the first connection took %v: who waited?", took)
	}
	w.Want("host to container", w.Host.Ask("tcp", "[fd09::5]:80"), "a fd09::1")
	w.Host.Serve("tcp", "[fd09::1]:81")
	w.Want("container to host", p.Ask("tcp", "[fd09::1]:81"), "host fd09::5")
	q := pod("b", conf+endpointtest.Static("fd09::6/64")).Add()
	w.Want("container to container", q.Ask("tcp", "[fd09::5]:80"), "a fd09::6")
	w.Want("accept_dad of the gateway", w.Host.ReadSysctl("net/ipv6/conf/"+gateway+"/accept_dad"), "0")
}

func TestFirstPackets(t *testing.T) { firstPackets(t, "tbr0", `"bridge": "tbr0", `) }

func TestFirstPacketsVLAN(t *testing.T) {
	nettest.Need(t, nettest.VLANFiltering())
	firstPackets(t, "tbr0.100", `"bridge": "tbr0", "vlan": 100, `)
}

// With enabledad the gateway looks for duplicates too.
func TestGatewayKeepsDuplicateDetection(t *testing.T) {
	w := cautiousWorld(t)
	w.Pod("a", `"bridge": "tbr0", "isGateway": true, "enabledad": true, `+endpointtest.Static("fd09::5/64")).Add()
	w.Want("accept_dad of the gateway", w.Host.ReadSysctl("net/ipv6/conf/tbr0/accept_dad"), "1")
}
