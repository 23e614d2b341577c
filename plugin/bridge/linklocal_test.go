// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/spec"
)

// The gateway of an IPv6 subnet may be link-local, as routers are. No route to the subnet comes with such an address, so
// the host gets one, and CHECK misses it.
func TestLinkLocalGateway(t *testing.T) {
	w := newWorld(t)
	const conf = `"bridge": "tbr0", "isDefaultGateway": true, "ipMasq": true, "ipam": {"type": "host-local",
		"ranges": [[{"subnet": "fd09::/64", "gateway": "fe80::1"}]]}`
	a, b := w.Pod("a", conf).Add(), w.Pod("b", conf).Add()
	b.Serve("tcp", endpointtest.Join(b.IP(0), "80"))
	w.Client.Serve("tcp", endpointtest.Join(node.Client6, "80"))
	w.Want("container to container", a.Ask("tcp", endpointtest.Join(b.IP(0), "80")), "b "+a.IP(0))
	w.Want("container to the outside", a.Ask("tcp", endpointtest.Join(node.Client6, "80")), "client "+node.Uplink6)
	if got := w.Host.Ask("tcp", endpointtest.Join(b.IP(0), "80")); len(got) < 2 || got[:2] != "b " {
		t.Errorf("host to container: %s", got)
	}
	endpointtest.Must(t, a.Do(spec.Check))
	endpointtest.Must(t, a.Do(spec.Status))
	br := w.HostLink("tbr0")
	endpointtest.Must(t, w.HostConn().RouteDel(&netlink.Route{LinkIndex: br.Attrs().Index, Dst: nl.IPNet(netip.MustParsePrefix("fd09::/64"))}))
	w.Fails(a.Do(spec.Check), "fd09::/64")
}
