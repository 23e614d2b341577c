// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcp_test

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/dhcp"
	"github.com/patchbay-net/patchbay/daemons/test/dhcptest"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/spec"
)

// dnsmasq serves both families, as a stateful DHCPv6 server with and without DHCPv4. The kernel looks
// for a duplicate of the link-local address first.
func TestV6(t *testing.T) {
	w := newWorldOf(t, nettest.NewNS(t, "c1"))
	s := dhcptest.Dnsmasq(t, "br0", "--dhcp-range=10.77.0.10,10.77.0.10,255.255.255.0,2m", "--dhcp-range=fd77::10,fd77::10,64,2m",
		"--dhcp-option=option6:dns-server,[fd77::2]", "--dhcp-option=option6:domain-search,six.lan")
	got := w.add(`"dhcpv6":true`)
	want := &spec.Result{
		IPs:    []spec.IPConfig{{Address: prefix("10.77.0.10/24"), Gateway: netip.MustParseAddr("10.77.0.1")}, {Address: prefix("fd77::10/128")}},
		Routes: []spec.Route{{Dst: prefix("0.0.0.0/0"), GW: netip.MustParseAddr("10.77.0.1")}},
		DNS:    spec.DNS{Nameservers: []string{"fd77::2"}, Search: []string{"six.lan"}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	w.del()
	s.WaitFor("DHCPRELEASE(br0) 00:04")
	if got = w.add(`"dhcpv4":false,"dhcpv6":true`); len(got.IPs) != 1 || got.IPs[0] != want.IPs[1] || len(got.Routes) != 0 {
		t.Errorf("DHCPv6 alone: %+v", got)
	}
}

// One family has no server. The ADD fails, and the other family's address is released.
func TestV6Missing(t *testing.T) {
	w := newWorld(t)
	s := dhcptest.Dnsmasq(t, "br0", "--dhcp-range=10.77.0.10,10.77.0.10,255.255.255.0,2m")
	w.impatient()
	if err := w.inVain(`"dhcpv6":true`); !errors.Is(err, dhcp.ErrNoMoreTries) {
		t.Error(err)
	}
	s.WaitFor("DHCPRELEASE")
	if w.keeper.Attachments() != 0 || w.files() != 0 {
		t.Error("something is kept")
	}
}

func short6(pool string, t1, t2, valid int) string {
	return fmt.Sprintf(`"renew-timer": %d, "rebind-timer": %d, "preferred-lifetime": %d, "valid-lifetime": %d,
		"subnet6": [{"subnet": "fd77::/64", "interface": "br0", "pools": [{"pool": "%s - %s"}]}]`, 60*t1, 60*t2, 60*valid-1, 60*valid, pool, pool)
}

// Kea renews the lease. If Kea is gone, the lease is rebound or expires. If Kea has another pool,
// the address on the interface changes.
func TestV6Upkeep(t *testing.T) {
	w := newWorld(t)
	w.impatient()
	s := dhcptest.Kea(t, "kea-dhcp6", "br0", short6("fd77::20", 20, 21, 22))
	addr := w.configured(`"dhcpv4":false,"dhcpv6":true`)
	w.passes("a renewal", func() bool { return strings.Contains(w.log.String(), "lease renewed") })
	s.Stop()
	w.passes("the address goes", func() bool { return !w.has(addr) })
	dhcptest.Kea(t, "kea-dhcp6", "br0", short6("fd77::30", 20, 21, 22))
	w.passes("another address", func() bool { return w.has("fd77::30/128") })
}
