// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// bridge creates a network's bridge with an address, as an ADD does.
func (h *host) bridge(network string, addr netip.Prefix) {
	h.t.Helper()
	bridge(h.t, bridgeName(network), addr)
	link, err := netlink.LinkByName(bridgeName(network))
	must(h.t, err)
	note := record.Made{Network: network, Index: link.Attrs().Index}
	must(h.t, record.New(h.dir+"/run").NoteMade(record.MadeBridge(bridgeName(network)), note))
}

// has reports whether a link has an address.
func has(t *testing.T, name string, addr netip.Prefix) bool {
	t.Helper()
	return slices.ContainsFunc(addresses(t, name), func(a netlink.Addr) bool { return nl.PrefixOf(a.IPNet) == addr })
}

// wrong reports whether ls shows this problem of the host.
func (h *host) wrong(what string) bool {
	h.t.Helper()
	l, err := Admin{h.store}.List(h.t.Context(), h.dir+"/state/hosts")
	must(h.t, err)
	return strings.Contains(strings.Join(l.Wrong, "\n"), what)
}

// Another program created a bridge under the name of a network's bridge. When the network is
// removed, that bridge stays, even with an address of the network.
func TestForeignBridge(t *testing.T) {
	s := openStore(t)
	a := newHost(t, s, 1)
	theirs := prefix("10.99.0.1/24")
	bridge(t, "pb-lan", theirs)
	must(t, Admin{s}.Create(t.Context(), lan()))
	a.start()
	a.block("lan")
	until(t, "ls reports that no container can be attached", func() bool { return a.wrong("pb-lan has the address 10.99.0.1/24") })
	must(t, Admin{s}.Remove(t.Context(), "lan", false))
	until(t, "the network is gone", func() bool { return a.conf("lan") == "" })
	until(t, "the log reports that the bridge stays", func() bool { return a.log.has("pb-lan stays: no note says that patchbay made it") })
	a.stop()
	if !has(t, "pb-lan", theirs) {
		t.Error("it is without its address")
	}
}

// Another program added an address to a bridge of ours. The bridge stays, and ls reports it.
func TestBridgeWithForeignAddress(t *testing.T) {
	s := openStore(t)
	a := newHost(t, s, 1)
	must(t, Admin{s}.Create(t.Context(), lan()))
	a.start()
	a.bridge("lan", netip.PrefixFrom(gatewayOf(a.block("lan")), 24))
	link, err := netlink.LinkByName("pb-lan")
	must(t, err)
	theirs := prefix("10.99.0.1/24")
	must(t, netlink.AddrAdd(link, &netlink.Addr{IPNet: nl.IPNet(theirs)}))
	must(t, Admin{s}.Remove(t.Context(), "lan", false))
	until(t, "ls reports it", func() bool { return a.wrong("pb-lan stays, because patchbay did not add its address 10.99.0.1/24") })
	must(t, netlink.AddrDel(link, &netlink.Addr{IPNet: nl.IPNet(theirs)}))
	resident.Signal(a.agent.kernel)
	until(t, "the bridge is gone", func() bool { _, err := netlink.LinkByName("pb-lan"); return err != nil })
}

// A network is created again with another range. When no address of the former block is in use
// any more, the former address leaves the network's bridge. Until then, ls shows why no container
// can be attached.
func TestOtherRange(t *testing.T) {
	s := openStore(t)
	must(t, Admin{s}.Create(t.Context(), lan()))
	a := newHost(t, s, 1)
	a.start()
	was := netip.PrefixFrom(gatewayOf(a.block("lan")), 24)
	web := was.Addr().Next().String()
	a.attach("e1", "lan", web, "web")
	a.bridge("lan", was)
	a.stop()
	must(t, Admin{s}.Remove(t.Context(), "lan", true))
	recreated := lan()
	recreated.Subnets = prefixes("10.201.0.0/16")
	must(t, Admin{s}.Create(t.Context(), recreated))
	a.start()
	until(t, "the new range", func() bool { return recreated.Subnets[0].Overlaps(a.block("lan")) })
	until(t, "ls says why nothing can be attached", func() bool { return a.wrong("pb-lan has the address " + was.String()) })
	if !has(t, "pb-lan", was) {
		t.Error("the container has lost its gateway")
	}
	a.detach("e1", "lan", web)
	until(t, "the address is gone", func() bool { return !has(t, "pb-lan", was) })
	until(t, "no problem is left", func() bool { return !a.wrong("pb-lan") })
}
