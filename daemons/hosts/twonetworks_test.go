// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/all"
)

// A container is on two networks, and the default route is the other network's. It still reaches the
// hosts of each network by that network.
func TestTwoNetworks(t *testing.T) {
	front := []byte(`{"cniVersion":"1.1.0","name":"front","plugins":[{"type":"bridge","bridge":"br-front","isGateway":true,
		"ipam":{"type":"host-local","ranges":[[{"subnet":"198.18.77.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}`)
	n := lan()
	n.Subnets, n.BlockBits6 = prefixes("10.200.0.0/16", "fd00:200::/48"), 64
	text, err := render(&plan{Network: n, Blocks: prefixes("10.200.3.0/24", "fd00:200:0:3::/64")})
	must(t, err)
	path := "/run/netns/twonetworks"
	must(t, netns.Create(path))
	defer func() { must(t, netns.Delete(path)) }()
	for _, name := range []string{"br-front", "pb-lan"} {
		defer func() {
			if link, err := netlink.LinkByName(name); err == nil {
				must(t, netlink.LinkDel(link))
			}
		}()
	}
	rt := chain.New(chain.WithPath(t.TempDir()), chain.WithCacheDir(t.TempDir()), chain.WithInvoker(&plugin.Builtin{NewSession: func() *plugin.Session { return plugin.NewSession(all.Plugins()) }}))
	for i, conf := range [][]byte{text, front} { // the default route is that of the last one
		list, err := chain.ParseList(conf)
		must(t, err)
		list.Plugins = list.Plugins[:1] // the bridge gives the routes
		a := chain.Attachment{ContainerID: "c1", NetNS: path, IfName: fmt.Sprint("eth", i)}
		_, err = rt.Add(t.Context(), list, a)
		must(t, err)
		defer func() { must(t, rt.Del(t.Context(), list, a)) }()
	}
	ns, err := netns.Open(path)
	must(t, err)
	defer ns.Close() //nolint:errcheck // read only
	c, err := nl.In(ns, "/proc")
	must(t, err)
	defer c.Close()
	link, err := c.Link("eth0")
	must(t, err)
	for to, via := range map[string]string{"10.200.77.6": "10.200.3.1", "fd00:200:0:77::6": "fd00:200:0:3::1"} {
		got, err := c.RouteGet(netip.MustParseAddr(to).AsSlice())
		if err != nil || len(got) != 1 || got[0].LinkIndex != link.Attrs().Index || nl.AddrOf(got[0].Gw).String() != via {
			t.Errorf("to %s: %+v %v", to, got, err)
		}
	}
}
