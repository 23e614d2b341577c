// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"fmt"
	"net"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/static"
	"github.com/patchbay-net/patchbay/spec"
)

// BenchmarkADD measures the plugin in process, with given addresses. It also measures the bare
// library calls that make the same link, address and route. The plugin also reads the call, looks
// before it changes anything, writes mark and record, checks the gateway, announces the address and
// prints the result.
func BenchmarkADD(b *testing.B) {
	for _, c := range []struct{ name, addrs string }{
		{"IPv4", `{"address": "10.9.0.5/24"}`}, {"dual", `{"address": "10.9.0.5/24"}, {"address": "fd09::5/64"}`},
	} {
		b.Run(c.name, func(b *testing.B) { benchmarkADD(b, c.addrs) })
	}
}

func benchmarkADD(b *testing.B, addrs string) {
	inv := &plugin.Builtin{NewSession: func() *plugin.Session {
		return plugin.NewSession([]*plugin.Plugin{&Plugin, &static.Plugin})
	}}
	conf := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "tbr0", "isDefaultGateway": true,
		"ipam": {"type": "static", "addresses": [%s]}}`, addrs)
	call := &spec.Call{ContainerID: "c", IfName: "eth0", NetNS: nettest.NewNS(b, "c"), Path: []string{"/x"}, Config: []byte(conf)}
	for b.Loop() {
		call.Verb = spec.Add
		if _, err := inv.Invoke(b.Context(), "bridge", call); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		call.Verb = spec.Del
		if _, err := inv.Invoke(b.Context(), "bridge", call); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkDEL spends nearly all its time in the kernel, which deletes one link and waits for RCU
// grace periods.
func BenchmarkDEL(b *testing.B) {
	inv := &plugin.Builtin{NewSession: func() *plugin.Session { return plugin.NewSession([]*plugin.Plugin{&Plugin}) }}
	call := &spec.Call{ContainerID: "c", IfName: "eth0", NetNS: nettest.NewNS(b, "c"), Path: []string{"/x"},
		Config: []byte(`{"cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "tbr0"}`)}
	for b.Loop() {
		for _, verb := range []spec.Verb{spec.Add, spec.Del} {
			call.Verb = verb
			if verb == spec.Add {
				b.StopTimer()
			}
			if _, err := inv.Invoke(b.Context(), "bridge", call); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	}
}

// bare makes everything that an ADD makes in the kernel.
type bare struct {
	host, inside *nl.Conn
	br           netlink.Link
}

func newBare(b *testing.B) *bare {
	host, err := nl.Host("/proc")
	endpointtest.Must(b, err)
	ns, err := netns.Open(nettest.NewNS(b, "c"))
	endpointtest.Must(b, err)
	inside, err := nl.In(ns, "/proc")
	endpointtest.Must(b, err)
	b.Cleanup(host.Close)
	b.Cleanup(inside.Close)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Flags = "tbare", net.FlagUp
	br := &netlink.Bridge{LinkAttrs: attrs}
	endpointtest.Must(b, host.LinkAdd(br))
	b.Cleanup(func() { endpointtest.Must(b, host.LinkDel(br)) })
	return &bare{host, inside, br}
}

func (x *bare) add(b *testing.B) netlink.Link {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Flags = "vbare", net.FlagUp
	pair := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(x.inside.NS.Fd())}
	endpointtest.Must(b, x.host.LinkAdd(pair))
	endpointtest.Must(b, x.host.LinkSetMaster(pair, x.br))
	eth0, err := x.inside.LinkByName("eth0")
	endpointtest.Must(b, err)
	endpointtest.Must(b, x.inside.AddrAdd(eth0, parseAddr("10.9.0.5/24")))
	endpointtest.Must(b, x.inside.LinkSetUp(eth0))
	endpointtest.Must(b, x.inside.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: net.IPv4(10, 9, 0, 1)}))
	return pair
}

func BenchmarkBareADD(b *testing.B) {
	x := newBare(b)
	for b.Loop() {
		pair := x.add(b)
		b.StopTimer()
		endpointtest.Must(b, x.host.LinkDel(pair))
		b.StartTimer()
	}
}

func BenchmarkBareDEL(b *testing.B) {
	x := newBare(b)
	for b.Loop() {
		b.StopTimer()
		pair := x.add(b)
		b.StartTimer()
		endpointtest.Must(b, x.host.LinkDel(pair))
	}
}
