// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// quick is far more than a round trip takes on a busy machine, and less than duplicate
// address detection takes with slow.
const quick = 10 * time.Second

// cautious makes new links look for duplicates, which is the kernel's default. The test's node
// switches this off to save time.
func cautious(s *node.Space) { s.Sysctl("net/ipv6/conf/default/accept_dad", "1") }

// slow works like cautious, but new links look for duplicates for 30 seconds instead of one. No
// busy machine delays a packet that long.
func slow(s *node.Space) {
	cautious(s)
	s.Sysctl("net/ipv6/conf/default/dad_transmits", "30")
}

func cautiousWorld(t *testing.T) *endpointtest.World {
	w := newWorld(t)
	cautious(w.Host)
	return w
}

// firstPackets checks that IPv6 flows through a new gateway at once, in both directions. Neither
// end may wait until the kernel has looked for duplicates of an address, even of a link-local
// one.
func firstPackets(t *testing.T, gateway, conf string) {
	t.Helper()
	w := newWorld(t)
	slow(w.Host)
	pod := func(name, conf string) *endpointtest.Pod {
		p := w.Pod(name, conf)
		slow(p.Space)
		return p
	}
	p := pod("a", conf+`"isDefaultGateway": true, `+endpointtest.Static("fd09::5/64")).Add()
	p.Serve("tcp", "[fd09::5]:80")
	start := time.Now()
	// This request comes first: for it the host must solicit the container with its link-local address.
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

// Another project's IPAM plugin is called when the link exists. Its IPv6 addresses cause no more
// delay than addresses from our IPAM plugins.
func TestFirstPacketsOthersIPAM(t *testing.T) {
	other := plugin.Plugin{Name: "other", Kind: plugin.IPAM,
		Add: func(context.Context, *plugin.Request) (*spec.Result, error) {
			return &spec.Result{IPs: []spec.IPConfig{{Address: netip.MustParsePrefix("fd09::5/64")}}}, nil
		},
	}
	w := endpointtest.New(t, &Plugin, &other)
	t.Cleanup(func() { w.Host.Delete("tbr0") })
	slow(w.Host)
	p := w.Pod("a", `"bridge": "tbr0", "isDefaultGateway": true, "ipam": {"type": "other"}`)
	slow(p.Space)
	p.Add()
	w.Want("accept_dad of the gateway", w.Host.ReadSysctl("net/ipv6/conf/tbr0/accept_dad"), "0")
	p.Serve("tcp", "[fd09::5]:80")
	start := time.Now()
	w.Want("outside to container", w.Client.Ask("tcp", "[fd09::5]:80"), "a "+node.Client6)
	if took := time.Since(start); took > quick {
		t.Errorf("the first connection took %v: the gateway waited", took)
	}
}

// With enabledad the gateway looks for duplicates too.
func TestGatewayKeepsDuplicateDetection(t *testing.T) {
	w := cautiousWorld(t)
	w.Pod("a", `"bridge": "tbr0", "isGateway": true, "enabledad": true, `+endpointtest.Static("fd09::5/64")).Add()
	w.Want("accept_dad of the gateway", w.Host.ReadSysctl("net/ipv6/conf/tbr0/accept_dad"), "1")
}
