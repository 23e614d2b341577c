// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
)

func TestUplink(t *testing.T) {
	if _, err := uplinkAddrs("/proc"); err == nil || !strings.Contains(err.Error(), "--address") {
		t.Errorf("without a way out: %v", err)
	}
	bridge(t, "up1", prefix("192.0.2.7/24"))
	bridge(t, "up2", prefix("198.51.100.7/24"))
	up1, up2 := up(t, "up1"), up(t, "up2")
	must(t, netlink.AddrAdd(up2, &netlink.Addr{IPNet: nl.IPNet(prefix("2001:db8::7/64")), Flags: unix.IFA_F_NODAD}))
	route := func(link netlink.Link, gw string, metric int) {
		must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.ParseIP(gw), Priority: metric}))
	}
	route(up1, "192.0.2.1", 200)
	got, err := uplinkAddrs("/proc")
	if want := []netip.Addr{netip.MustParseAddr("192.0.2.7")}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v %v", got, err)
	}
	route(up2, "198.51.100.1", 100)
	route(up2, "2001:db8::1", 100)
	got, err = uplinkAddrs("/proc")
	if want := []netip.Addr{netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("2001:db8::7")}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v %v", got, err)
	}
}

func up(t *testing.T, name string) netlink.Link {
	t.Helper()
	link, err := netlink.LinkByName(name)
	must(t, err)
	must(t, netlink.LinkSetUp(link))
	return link
}

// Without an uplink a host keeps its state, and publishes nothing.
func TestNoUplink(t *testing.T) {
	s := openStore(t)
	must(t, Admin{s}.Create(t.Context(), lan()))
	a := newHost(t, s, 1)
	a.start()
	a.block("lan")
	conf := a.conf("lan")
	a.stop()
	a.addr = netip.Addr{}
	a.start()
	until(t, "it is logged", func() bool { return a.log.has("uplink: no interface has a default route") })
	a.stop()
	if err := a.agent.tend(t.Context()); err == nil {
		t.Error("it would look again only in a minute")
	}
	if a.conf("lan") != conf || a.fabric.calls != 0 {
		t.Errorf("%d calls, %s", a.fabric.calls, a.conf("lan"))
	}
}

func TestDamagedFiles(t *testing.T) {
	s := openStore(t)
	a := newHost(t, s, 1)
	a.start()
	id := a.agent.ID()
	a.stop()
	must(t, os.WriteFile(filepath.Join(a.dir, "state/hosts/world.json"), []byte(`{"networks":[{`), 0o600))
	a.start() // the store has it
	if a.agent.ID() != id || !a.log.has("read the saved state") {
		t.Errorf("%s %q", a.agent.ID(), a.log.all)
	}
	a.stop()
	node := filepath.Join(a.dir, "state/hosts/node.json")
	for _, text := range []string{"", "{}", `{"id":"../x"}`} {
		must(t, os.WriteFile(node, []byte(text), 0o600))
		if _, err := loadIdentity(filepath.Dir(node)); err == nil || !strings.Contains(err.Error(), "the host's identity") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
