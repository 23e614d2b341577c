// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/plugin/hostlocal"
	"github.com/patchbay-net/patchbay/plugin/static"
)

// newWorld makes a node. The end of the test deletes the node's bridges, because the plugin never
// deletes them.
func newWorld(t *testing.T) *endpointtest.World {
	w := endpointtest.New(t, &Plugin, &hostlocal.Plugin, &static.Plugin)
	for _, bridge := range []string{"tbr0", "tbr1", "tbr0.100"} {
		t.Cleanup(func() { w.Host.Delete(bridge) })
	}
	return w
}

// port is the host's end of a pod.
func port(w *endpointtest.World, p *endpointtest.Pod) netlink.Link {
	w.Helper()
	return w.HostLink(p.Result.Interfaces[atHost].Name)
}

const dual = `"bridge": "tbr0", "isDefaultGateway": true, "ipam": {"type": "host-local",
	"ranges": [[{"subnet": "10.9.0.0/24"}], [{"subnet": "fd09::/64"}]]}`
