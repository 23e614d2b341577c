// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package withplugin

import (
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/test/dhcptest"
	"github.com/patchbay-net/patchbay/internal/dhcprpc"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/bridge"
	"github.com/patchbay-net/patchbay/plugin/dhcp"
	"github.com/patchbay-net/patchbay/plugin/hostlocal"
	"github.com/patchbay-net/patchbay/spec"
)

// Clouds send an address without a subnet, and a route on the link to its router (RFC 3442: router 0.0.0.0), in any order.
// ADD makes both routes, CHECK agrees, and reports each that is lost.
func TestOnLinkRoutes(t *testing.T) {
	for name, routes := range map[string]string{
		"the router first":  "10.77.0.1/32,0.0.0.0,0.0.0.0/0,10.77.0.1",
		"the default first": "0.0.0.0/0,10.77.0.1,10.77.0.1/32,0.0.0.0",
	} {
		t.Run(name, func(t *testing.T) {
			dhcptest.LAN(t, "br0", "10.77.0.1/24")
			dhcptest.Dnsmasq(t, "br0", "--dhcp-range=10.77.0.10,10.77.0.10,255.255.255.0,2m", "--dhcp-option=1,255.255.255.255", "--dhcp-option=121,"+routes)
			dhcptest.Serve(t, dhcprpc.DefaultSocket)
			ns := nettest.NewNS(t, "cloud")
			call := func(verb spec.Verb, prev string) (string, error) {
				b := plugin.Builtin{NewSession: func() *plugin.Session {
					return plugin.NewSession([]*plugin.Plugin{&bridge.Plugin, &dhcp.Plugin, &hostlocal.Plugin})
				}}
				out, err := b.Invoke(t.Context(), "bridge", &spec.Call{Verb: verb, ContainerID: "cloud", NetNS: ns, IfName: "eth0", Path: []string{"/nonexistent"},
					Config: []byte(`{"cniVersion":"1.1.0","name":"net","type":"bridge","bridge":"br0","ipam":{"type":"dhcp"}` + prev + `}`)})
				return `,"prevResult":` + string(out), err
			}
			prev, err := call(spec.Add, "")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := call(spec.Check, prev); err != nil {
				t.Errorf("CHECK after ADD: %v", err)
			}
			for _, dst := range []string{"10.77.0.1/32", "0.0.0.0/0"} {
				restore := without(t, ns, dst)
				if _, err := call(spec.Check, prev); err == nil || !strings.Contains(err.Error(), dst) {
					t.Errorf("CHECK without the route to %s: %v", dst, err)
				}
				restore()
				if _, err := call(spec.Check, prev); err != nil {
					t.Errorf("CHECK with the route to %s again: %v", dst, err)
				}
			}
			if _, err := call(spec.Del, prev); err != nil {
				t.Error(err)
			}
		})
	}
}

// without deletes the route of a namespace to a destination, and returns what puts it back.
func without(t *testing.T, path, dst string) (restore func()) {
	t.Helper()
	ns, err := netns.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	c, err := nl.In(ns, "/proc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	routes, err := c.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes {
		if r.Dst.String() == dst {
			if err := c.RouteDel(&r); err != nil {
				t.Fatal(err)
			}
			return func() {
				if err := c.RouteAdd(&r); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	t.Fatalf("no route to %s: %v", dst, routes)
	return nil
}
