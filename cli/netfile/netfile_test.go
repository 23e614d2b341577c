// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netfile

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// info describes the file of a wish.
func info(t *testing.T, w Request, taken *InUse) Info {
	t.Helper()
	w.Name = "n"
	text, _, err := New(w, taken, bytes.NewReader(bytes.Repeat([]byte{7}, 100)))
	if err != nil {
		t.Fatal(err)
	}
	l, err := chain.ParseList(text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if l.CNIVersion != "1.1.0" || !Ours(l) {
		t.Errorf("version %s, ours %v", l.CNIVersion, Ours(l))
	}
	return Describe(l)
}

func subnets(i Info) string {
	var words []string
	for _, s := range i.Subnets {
		words = append(words, s.Prefix.String())
	}
	return strings.Join(words, ",")
}

func TestNew(t *testing.T) {
	busy := &InUse{Links: []string{"pb1", "eth0"}, Uses: []Use{
		{Prefix: netip.MustParsePrefix("10.89.0.0/23"), What: "a network"},
		{Prefix: netip.MustParsePrefix("10.89.2.128/25"), What: "an address"},
	}}
	full := &InUse{Uses: []Use{{Prefix: netip.MustParsePrefix("10.0.0.0/8"), What: "a VPN", Through: true}}}
	for _, c := range []struct {
		name    string
		wish    Request
		taken   *InUse
		subnets string
		link    string
	}{
		{"the first free subnet and bridge", Request{}, &InUse{}, "10.89.0.0/24", "pb1"},
		{"around what is in use", Request{}, busy, "10.89.3.0/24", "pb2"},
		{"outside of a VPN", Request{}, full, "172.20.0.0/24", "pb1"},
		{"two families", Request{IPv6: true}, &InUse{}, "10.89.0.0/24,fd07:707:707::/64", "pb1"},
		{"two families, one given", Request{IPv6: true, Subnets: []string{"10.1.0.0/16"}}, &InUse{}, "10.1.0.0/16,fd07:707:707::/64", "pb1"},
		{"IPv6 alone", Request{Subnets: []string{"fd00:89::/64"}}, &InUse{}, "fd00:89::/64", "pb1"},
		{"IPv6 given, IPv4 wanted too", Request{IPv6: true, Subnets: []string{"fd00:89::/64"}}, &InUse{}, "10.89.0.0/24,fd00:89::/64", "pb1"},
		{"a part of a VPN's route", Request{Subnets: []string{"10.89.0.0/24"}}, full, "10.89.0.0/24", "pb1"},
		{"a bridge by name", Request{Interface: "br7"}, busy, "10.89.3.0/24", "br7"},
		{"separate plugins", Request{Separate: true}, &InUse{}, "10.89.0.0/24", "pb1"},
		{"macvlan in the host's own subnet", Request{Driver: "macvlan", Options: []string{"parent=eth0"}, Subnets: []string{"10.89.0.0/24"}}, busy, "10.89.0.0/24", "eth0"},
		{"macvlan with DHCP", Request{Driver: "macvlan", Options: []string{"parent=eth0"}}, busy, "", "eth0"},
	} {
		i := info(t, c.wish, c.taken)
		if got := subnets(i); got != c.subnets || i.Interface != c.link {
			t.Errorf("%s: %q on %s, not %q on %s", c.name, got, i.Interface, c.subnets, c.link)
		}
	}
}

func TestDetails(t *testing.T) {
	i := info(t, Request{
		Subnets: []string{"10.1.0.0/16", "fd00:1::/64"}, Gateways: []string{"10.1.255.254"}, Ranges: []string{"10.1.255.0/24", "fd00:1::100-fd00:1::1ff"},
		DNS: []string{"192.0.2.53"}, Options: []string{"mtu=1400", "vlan=7", "isolate=true"},
	}, &InUse{})
	v4, v6 := i.Subnets[0], i.Subnets[1]
	if v4.Gateway.String() != "10.1.255.254" || v4.First.String() != "10.1.255.0" || v4.Last.String() != "10.1.255.254" {
		t.Errorf("IPv4: %+v", v4)
	}
	if v6.Gateway.String() != "fd00:1::1" || v6.First.String() != "fd00:1::100" || v6.Last.String() != "fd00:1::1ff" {
		t.Errorf("IPv6: %+v", v6)
	}
	if i.MTU != 1400 || i.Vlan != 7 || i.Isolate != "same-bridge" || !slices.Equal(i.DNS, []string{"192.0.2.53"}) {
		t.Errorf("%+v", i)
	}
	if i := info(t, Request{Internal: true}, &InUse{}); !i.Internal || i.Subnets[0].Gateway.IsValid() {
		t.Errorf("internal: %+v", i)
	}
}

func TestRefused(t *testing.T) {
	taken := &InUse{Links: []string{"cni0"}, Devices: map[string]Device{
		"eth0": {MTU: 1500, Ethernet: true}, "lo": {MTU: 65536}, "eth1": {MTU: 1500, Ethernet: true, Port: "br0"},
	}, Uses: []Use{{Prefix: netip.MustParsePrefix("10.88.0.0/16"), What: "10.88.0.0/16 of network podman"}}}
	for _, c := range []struct {
		wish Request
		want string
	}{
		{Request{Subnets: []string{"10.1.2.3/24"}}, "it is an address in a subnet"},
		{Request{Subnets: []string{"10.1.2.3"}}, "it is no subnet"},
		{Request{Subnets: []string{"0.0.0.0/0"}}, "it is too large for a network: a /8 is the largest there is"},
		{Request{Subnets: []string{"10.1.2.2/31"}}, "it is too small"},
		{Request{Subnets: []string{"127.1.0.0/16"}}, "no container can have an address of it"},
		{Request{Subnets: []string{"fe80::/64"}}, "no container can have an address of it"},
		{Request{Subnets: []string{"10.1.0.0/16", "10.1.2.0/24"}}, "it overlaps --subnet 10.1.0.0/16"},
		{Request{Subnets: []string{"10.88.4.0/24"}}, "subnet 10.88.4.0/24 overlaps 10.88.0.0/16 of network podman"},
		{Request{Subnets: []string{"10.0.0.0/8"}}, "overlaps 10.88.0.0/16 of network podman"},
		{Request{Gateways: []string{"10.1.0.1"}}, "it needs --subnet"},
		{Request{Subnets: []string{"10.1.0.0/24"}, Gateways: []string{"10.2.0.1"}}, "10.2.0.1 is in no --subnet"},
		{Request{Subnets: []string{"10.1.0.0/24"}, Gateways: []string{"10.1.0.255"}}, "first or last address"},
		{Request{Subnets: []string{"10.1.0.0/24"}, Gateways: []string{"10.1.0.1", "10.1.0.2"}}, "has the gateway 10.1.0.1 already"},
		{Request{Subnets: []string{"10.1.0.0/24"}, Ranges: []string{"10.1.0.128/23"}}, "it ends outside of 10.1.0.0/24"},
		{Request{Subnets: []string{"10.1.0.0/24"}, Ranges: []string{"10.1.0.9-10.1.0.8"}}, "the last address comes before the first"},
		{Request{Subnets: []string{"10.1.0.0/24"}, Ranges: []string{"nonsense"}}, "neither a prefix nor FIRST-LAST"},
		{Request{Driver: "calico"}, "knows no such driver"},
		{Request{Driver: "macvlan"}, "--parent"},
		{Request{Driver: "ipvlan", Options: []string{"parent=eth0"}}, "it needs --subnet"},
		{Request{Driver: "macvlan", IPv6: true, Options: []string{"parent=eth0"}}, "give the IPv6 subnet of that"},
		{Request{Driver: "macvlan", Options: []string{"parent=eth0", "mode=l2"}}, "has the modes bridge, private, vepa, passthru"},
		{Request{Options: []string{"parent=eth0"}}, "a bridge network has no such option, only isolate, mtu, vlan"},
		{Request{Options: []string{"mtu"}}, "an option is KEY=VALUE"},
		{Request{Options: []string{"mtu=9"}}, "a number from 68 to 65535"},
		{Request{Options: []string{"isolate=x"}}, "it is true"},
		{Request{Interface: "cni0"}, "two networks on one bridge"},
		{Request{Interface: "a/b"}, "--interface-name a/b"},
		{Request{Internal: true, Driver: "ptp"}, "nothing but its way out"},
		{Request{Internal: true, Driver: "macvlan", Options: []string{"parent=eth0"}}, "a macvlan is in the network of its parent"},
		{Request{DNS: []string{"x"}}, "it is no address"},
		{Request{Subnets: []string{"10.1.0.0/24", "fd00::/64", "10.2.0.0/24"}}, "--subnet 10.2.0.0/24: a bridge is the gateway of one IPv4 subnet"},
		{Request{IPv6: true, Options: []string{"mtu=1279"}}, "--option mtu=1279: IPv6 needs an MTU of at least 1280"},
		{Request{Driver: "ptp", Subnets: []string{"fd00::/64"}, Options: []string{"mtu=1000"}}, "IPv6 needs an MTU"},
		{Request{Subnets: []string{"::/64"}}, "no container can have an address of it"},
		{Request{Subnets: []string{"10.1.0.0/24"}, Ranges: []string{"10.1.0.1/32"}}, "it holds only 10.1.0.1, which is the gateway's"},
		{Request{Subnets: []string{"10.1.0.0/24"}, Ranges: []string{"10.1.0.0/31"}, Internal: true}, "it holds only 10.1.0.1"},
		{Request{Subnets: []string{"10.1.0.0/24"}, Gateways: []string{"10.1.0.9"}, Ranges: []string{"10.1.0.9-10.1.0.9"}}, "it holds only 10.1.0.9"},
		{Request{Subnets: []string{"10.1.0.0/24"}, Ranges: []string{"10.1.0.0/32"}}, "it holds only the first or last address of 10.1.0.0/24"},
		{Request{Subnets: []string{"10.1.0.0/24"}, Ranges: []string{"10.1.0.255/32"}}, "it holds only the first or last address"},
		{Request{Subnets: []string{"fd00::/64"}, Ranges: []string{"fd00::/128"}}, "it holds only the first or last address"},
		{Request{Interface: "all"}, "so no interface can have it"},
		{Request{Interface: "br%d"}, "leave out the %"},
		{Request{Interface: "averylongname1", Options: []string{"vlan=4000"}}, "would be averylongname1.4000"},
		{Request{Driver: "macvlan", Options: []string{"parent=lo"}}, "--parent lo: it is no Ethernet interface"},
		{Request{Driver: "ipvlan", Options: []string{"parent=lo"}, Subnets: []string{"10.1.0.0/24"}}, "--parent lo: it is no Ethernet interface"},
		{Request{Driver: "macvlan", Options: []string{"parent=eth1"}}, "it is a port of br0"},
		{Request{Driver: "macvlan", Options: []string{"parent=eth0", "mtu=1501"}}, "the MTU of eth0 is 1500"},
	} {
		c.wish.Name = "n"
		_, _, err := New(c.wish, taken, strings.NewReader("0123456789"))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, not %q", c.wish, err, c.want)
		}
	}
	_, _, err := New(Request{Name: "../x"}, taken, nil)
	if m := (*Mistake)(nil); !errors.As(err, &m) {
		t.Errorf("a name that leads out: %v", err)
	}
}

// Requests that the kernel accepts are not refused. One is a second subnet, if the bridge is no
// gateway, the subnet is an IPv6 subnet, or the driver is not bridge. Another is an ipvlan whose
// MTU is above its parent's.
func TestPossible(t *testing.T) {
	taken := &InUse{
		Devices:  map[string]Device{"eth0": {MTU: 1500, Ethernet: true}},
		Children: []Children{{"lan", "ipvlan", "eth0"}, {"far", "macvlan", "eth1"}},
	}
	two := []string{"10.1.0.0/24", "10.2.0.0/24"}
	for _, c := range []struct {
		wish Request
		warn string
	}{
		{Request{Subnets: two, Internal: true}, ""},
		{Request{Subnets: two, Driver: "ptp"}, ""},
		{Request{Subnets: two, Driver: "macvlan", Options: []string{"parent=eth1"}}, "this host has no interface eth1 now"},
		{Request{Subnets: two, Driver: "ipvlan", Options: []string{"parent=eth0", "mtu=9000"}}, ""},
		{Request{Driver: "macvlan", Options: []string{"parent=eth0"}}, "network lan has the driver ipvlan on eth0"},
		{Request{Subnets: []string{"fd00:1::/64", "fd00:2::/64"}, Options: []string{"mtu=1280"}}, ""},
		{Request{Subnets: []string{"10.1.0.0/30"}, Options: []string{"mtu=68"}, Ranges: []string{"10.1.0.2/32"}}, ""},
	} {
		c.wish.Name = "n"
		_, warnings, err := New(c.wish, taken, strings.NewReader("0123456789"))
		if got := strings.Join(warnings, "; "); err != nil || !strings.Contains(got, c.warn) || c.warn == "" && got != "" {
			t.Errorf("%+v: %v, warnings %q, not %q", c.wish, err, got, c.warn)
		}
	}
}

// ReadInUse finds addresses, routes of any table, and the contents of other files.
func TestLook(t *testing.T) {
	c, err := nl.Host("/proc")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "look0"
	link := &netlink.Bridge{LinkAttrs: attrs}
	for _, err := range []error{c.LinkAdd(link), c.LinkSetUp(link), c.AddrAdd(link, address(t, "10.89.0.9/24")),
		c.RouteAdd(&netlink.Route{LinkIndex: link.Index, Dst: address(t, "10.89.1.0/24").IPNet, Table: 77}),
		c.RouteAdd(&netlink.Route{LinkIndex: link.Index, Dst: address(t, "10.89.2.0/23").IPNet, Gw: address(t, "10.89.0.1/32").IP})} {
		if err != nil {
			t.Fatal(err)
		}
	}
	defer c.LinkDel(link) //nolint:errcheck // the namespace goes
	l, err := chain.ParseList([]byte(`{"name": "x", "cniVersion": "1.0.0", "plugins": [{"type": "patchbay", "plugins": [
		{"type": "bridge", "bridge": "br7", "ipam": {"type": "host-local", "subnet": "10.89.4.0/24"}}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	taken, err := ReadInUse(&chain.Dir{Lists: []*chain.List{l}}, c)
	if err != nil {
		t.Fatal(err)
	}
	for p, what := range map[string]string{
		"10.89.0.0/24": "the address 10.89.0.9/24 of look0", "10.89.1.0/24": "the route 10.89.1.0/24 by look0",
		"10.89.3.0/24": "the route 10.89.2.0/23 by look0", "10.89.4.0/24": "10.89.4.0/24 of network x ()", "10.89.5.0/24": "",
	} {
		if u, _ := taken.first(netip.MustParsePrefix(p)); u.What != what {
			t.Errorf("%s: %q, not %q", p, u.What, what)
		}
	}
	if !slices.Contains(taken.Links, "br7") || !slices.Contains(taken.Links, "look0") {
		t.Errorf("names: %v", taken.Links)
	}
}

// ReadInUse reports which interfaces can have children.
func TestLookDevices(t *testing.T) {
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "lookbr"}}
	port := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "lookport", MTU: 1400}, PeerName: "lookpeer"}
	for _, l := range []netlink.Link{bridge, port} {
		if err := netlink.LinkAdd(l); err != nil {
			t.Fatal(err)
		}
	}
	if err := netlink.LinkSetMaster(port, bridge); err != nil {
		t.Fatal(err)
	}
	c, err := nl.Host("/proc")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	lan, err := chain.ParseList([]byte(`{"cniVersion":"1.1.0","name":"lan","plugins":[{"type":"macvlan","master":"eth7"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	taken, err := ReadInUse(&chain.Dir{Lists: []*chain.List{lan}}, c)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]Device{
		"lo": {MTU: 65536}, "lookbr": {MTU: 1400, Ethernet: true}, "lookport": {MTU: 1400, Ethernet: true, Port: "lookbr"}, "lookpeer": {MTU: 1400, Ethernet: true},
	} {
		if got := taken.Devices[name]; got != want {
			t.Errorf("%s: %+v, not %+v", name, got, want)
		}
	}
	if !slices.Equal(taken.Children, []Children{{"lan", "macvlan", "eth7"}}) {
		t.Errorf("children: %v", taken.Children)
	}
}

func address(t *testing.T, s string) *netlink.Addr {
	a, err := netlink.ParseAddr(s)
	if err != nil {
		t.Fatal(err)
	}
	return a
}
