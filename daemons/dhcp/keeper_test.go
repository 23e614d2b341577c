// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcp_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/daemons/dhcp"
	"github.com/patchbay-net/patchbay/daemons/test/dhcptest"
	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/dhcprpc"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/spec"
)

func TestMain(m *testing.M) { nettest.Main(m) }

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func TestResult(t *testing.T) {
	w := newWorld(t)
	s := dhcptest.Dnsmasq(t, "br0", "--dhcp-range=10.77.0.10,10.77.0.10,255.255.255.0,2m",
		"--dhcp-option=option:dns-server,10.77.0.2,10.77.0.3", "--dhcp-option=option:domain-name,lan", "--dhcp-option=option:domain-search,a.lan,b.lan",
		"--dhcp-option=option:classless-static-route,10.9.0.0/16,10.77.0.9,10.8.0.0/16,0.0.0.0")
	link := 253
	got := w.add(`"priority":7,"provide":[{"option":"host-name","value":"web"}]`)
	want := &spec.Result{
		IPs: []spec.IPConfig{{Address: prefix("10.77.0.10/24"), Gateway: netip.MustParseAddr("10.77.0.1")}},
		Routes: []spec.Route{{Dst: prefix("10.9.0.0/16"), GW: netip.MustParseAddr("10.77.0.9"), Priority: 7},
			{Dst: prefix("10.8.0.0/16"), GW: netip.MustParseAddr("0.0.0.0"), Scope: &link, Priority: 7}},
		DNS: spec.DNS{Nameservers: []string{"10.77.0.2", "10.77.0.3"}, Domain: "lan", Search: []string{"a.lan", "b.lan"}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if again := w.add(`"priority":7`); !reflect.DeepEqual(again, want) {
		t.Errorf("a second ADD: %+v", again)
	}
	if !s.Said("client provides name: web") {
		t.Error("the server did not hear of the host name")
	}
	w.del()
	s.WaitFor("DHCPRELEASE")
	if n := w.files(); n != 0 {
		t.Errorf("%d leases on disk", n)
	}
	w.del() // a second time
	got = w.add(`"request":[{"skipDefault":true},{"option":"subnet-mask"},{"option":"routers"}]`)
	want.Routes, want.DNS = []spec.Route{{Dst: prefix("0.0.0.0/0"), GW: netip.MustParseAddr("10.77.0.1")}}, spec.DNS{}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("without classless routes: %+v", got)
	}
	w.del()
	if got = w.add(`"request":[{"skipDefault":true},{"option":"subnet-mask"}]`); got.IPs[0].Gateway.IsValid() || len(got.Routes) != 0 || !got.DNS.IsZero() {
		t.Errorf("the mask alone: %+v", got)
	}
}

// short is a lease of Kea with the times T1, T2 and end in minutes.
func short(subnet string, t1, t2, valid int) string {
	return fmt.Sprintf(`"renew-timer": %d, "rebind-timer": %d, "valid-lifetime": %d,
		"calculate-tee-times": false, "authoritative": true, "subnet4": [{"subnet": "%s.0/24", "pools": [{"pool": "%s.10 - %s.10"}],
		"option-data": [{"name": "routers", "data": "%s.1"}]}]`, 60*t1, 60*t2, 60*valid, subnet, subnet, subnet, subnet)
}

func TestRenewAndRebind(t *testing.T) {
	w := newWorld(t)
	w.impatient()
	s := dhcptest.Kea(t, "kea-dhcp4", "br0", short("10.77.0", 38, 40, 120))
	addr := w.configured("")
	w.passes("two renewals", func() bool { return w.logged("lease renewed") >= 2 })
	s.Stop()
	renewed := w.clock.Since()
	w.passes("T2", func() bool {
		return w.logged("no DHCP server answered") > 0 && w.clock.Since()-renewed >= 40*time.Minute
	})
	s.Start()
	w.passes("any server is asked", func() bool { return w.logged("lease rebound") > 0 })
	if !w.has(addr) {
		t.Errorf("the interface has %v, leased is %s", dhcptest.Addrs(t, w.ns), addr)
	}
}

// When a lease expires, its address leaves the interface. When a server answers again, the
// address comes back.
func TestExpiry(t *testing.T) {
	w := newWorld(t)
	w.impatient()
	s := dhcptest.Kea(t, "kea-dhcp4", "br0", short("10.77.0", 20, 21, 22))
	addr := w.configured("")
	s.Stop()
	w.passes("the address goes", func() bool { return !w.has(addr) })
	dhcptest.Eventually(t, "CHECK tells of it", func() bool {
		_, err := w.keeper.Check(t.Context(), w.args("c1", ""))
		return err != nil && strings.Contains(err.Error(), "the DHCPv4 lease was lost")
	})
	w.restart() // the next keeper knows that the interface waits for an address
	s.Start()
	w.passes("the address comes back", func() bool {
		return w.has(addr) && reflect.DeepEqual(dhcptest.Routes(t, w.ns), []string{"0.0.0.0/0 via 10.77.0.1 metric 0"})
	})
}

// The machine is suspended while no server answers, and the lease ends in that time. The address goes
// soon after the machine runs again.
func TestExpiryWhileSuspended(t *testing.T) {
	w := newWorld(t)
	w.impatient()
	s := dhcptest.Kea(t, "kea-dhcp4", "br0", short("10.77.0", 60, 600, 1440))
	addr := w.configured("")
	s.Stop()
	w.passes("T1, in vain", func() bool { return w.logged("no DHCP server answered") > 0 && w.asleep() })
	w.clock.Suspend(24 * time.Hour)
	began := w.clock.Awake()
	w.passes("the address goes", func() bool { return !w.has(addr) })
	if took := w.clock.Awake() - began; took > 2*w.opts.Watch+time.Minute {
		t.Errorf("the interface had the address for %v after its lease had ended", took)
	}
}

// A server that has moved to another subnet refuses the address. The keeper removes it and adds
// the new address with its route.
func TestNak(t *testing.T) {
	w := newWorld(t)
	s := dhcptest.Kea(t, "kea-dhcp4", "br0", short("10.77.0", 38, 40, 120))
	w.configured(`"priority":7`)
	s.Stop()
	dhcptest.SetAddr(t, "br0", "10.78.0.1/24")
	dhcptest.Dnsmasq(t, "br0", "--dhcp-range=10.78.0.10,10.78.0.10,255.255.255.0,2m")
	w.passes("the new address", func() bool {
		return reflect.DeepEqual(dhcptest.Addrs(t, w.ns), []string{"10.78.0.10/24"}) &&
			reflect.DeepEqual(dhcptest.Routes(t, w.ns), []string{"0.0.0.0/0 via 10.78.0.1 metric 7"})
	})
	if r := w.add(""); r.IPs[0].Address != prefix("10.78.0.10/24") {
		t.Errorf("%+v", r)
	}
}

// A killed keeper releases nothing. The next keeper goes on in each namespace, and knows how old
// each lease is.
func TestTakenUpAgain(t *testing.T) {
	w := newWorld(t)
	s := dhcptest.Dnsmasq(t, "br0", "--dhcp-range=10.77.0.10,10.77.0.10,255.255.255.0,2m", "--dhcp-option=option:T1,60")
	before := w.add("")
	w.restart()
	if s.Said("DHCPRELEASE") {
		t.Error("a keeper that ends releases nothing")
	}
	acks := s.Count("DHCPACK")
	got, err := w.keeper.Check(t.Context(), w.args("c1", ""))
	if err != nil || !reflect.DeepEqual(got, before) {
		t.Errorf("%+v, %v; want %+v", got, err, before)
	}
	w.passes("a renewal by the second keeper", func() bool { return s.Count("DHCPACK") > acks })
	w.del()
	s.WaitFor("DHCPRELEASE")
}

func TestInterfaceGone(t *testing.T) {
	w := newWorld(t)
	dhcptest.Dnsmasq(t, "br0", "--dhcp-range=10.77.0.10,10.77.0.10,255.255.255.0,2m")
	w.add("")
	dhcptest.Unplug(t, w.ns)
	w.passes("the lease is dropped", func() bool { return w.keeper.Attachments() == 0 && w.files() == 0 })
	if _, err := w.keeper.Check(t.Context(), w.args("c1", "")); !errors.Is(err, dhcp.ErrUnknown) {
		t.Error(err)
	}
	if _, err := w.keeper.Allocate(t.Context(), w.args("c1", "")); err == nil || !strings.Contains(err.Error(), `error looking up "eth0"`) {
		t.Error(err)
	}
	dhcptest.Plug(t, "br0", w.ns)
	if r := w.add(""); r.IPs[0].Address != prefix("10.77.0.10/24") {
		t.Errorf("%+v", r)
	}
}

func TestNobodyAnswers(t *testing.T) {
	w := newWorld(t)
	w.impatient()
	start := w.clock.Since()
	if err := w.inVain(""); !errors.Is(err, dhcp.ErrNoMoreTries) {
		t.Error(err)
	}
	if took := w.clock.Since() - start; took < 200*time.Second || took > 300*time.Second {
		t.Errorf("after %v", took)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := w.keeper.Allocate(ctx, w.args("c1", "")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the caller went: %v", err)
	}
	if w.keeper.Attachments() != 0 || w.files() != 0 {
		t.Error("something is kept")
	}
}

// A DEL of bridge or macvlan deletes the interface as soon as the lease is released. The release
// must still reach the server, although the kernel may first have to resolve the server's
// Ethernet address.
func TestReleaseBeforeTheInterfaceGoes(t *testing.T) {
	w := newWorld(t)
	s := dhcptest.Dnsmasq(t, "br0", "--dhcp-range=10.77.0.100,10.77.0.150,255.255.255.0,2m")
	w.configured("")
	br, err := netlink.LinkByName("br0")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetARPOff(br); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(200*time.Millisecond, func() {
		if err := netlink.LinkSetARPOn(br); err != nil {
			t.Error(err)
		}
	})
	w.del()
	dhcptest.Unplug(t, w.ns)
	s.WaitFor("DHCPRELEASE")
}

// A DEL ends an ADD that still waits for a server.
func TestReleaseDuringAllocate(t *testing.T) {
	w := newWorld(t)
	failed := make(chan error)
	go func() {
		_, err := w.keeper.Allocate(context.Background(), w.args("c1", ""))
		failed <- err
	}()
	dhcptest.Eventually(t, "the ADD has begun", func() bool { return w.keeper.Attachments() == 1 })
	w.del()
	if err := <-failed; err == nil {
		t.Error("the ADD succeeded")
	}
}

// A second DEL ends after the next ADD. It leaves the new lease alone.
func TestLateRelease(t *testing.T) {
	w := newWorld(t)
	dhcptest.Dnsmasq(t, "br0", "--dhcp-range=10.77.0.10,10.77.0.10,255.255.255.0,2m")
	w.add("")
	late := w.keeper.LateRelease(w.args("c1", ""))
	w.del()
	w.add("")
	if err := late(t.Context()); err != nil {
		t.Error(err)
	}
	if w.files() != 1 || w.keeper.Attachments() != 1 {
		t.Errorf("%d leases on disk, %d held", w.files(), w.keeper.Attachments())
	}
}

func TestCollect(t *testing.T) {
	w := newWorld(t)
	w.keeper.SetHostPrefix("/proc/self/root") // as if the host's file system were mounted there
	s := dhcptest.Dnsmasq(t, "br0", "--dhcp-range=10.77.0.10,10.77.0.20,255.255.255.0,2m")
	before := time.Now()
	for _, id := range []string{"c1", "c2"} {
		if _, err := w.keeper.Allocate(t.Context(), w.args(id, "")); err != nil {
			t.Fatal(err)
		}
	}
	earlier := fmt.Sprintf(`{"name":"net","cni.dev/valid-attachments":[],%q:%q}`, clock.ListedKey, before.Format(time.RFC3339Nano))
	for _, tc := range []struct {
		conf string
		left int
	}{
		{earlier, 2}, {`{"name":"net"}`, 2}, {`{"name":"other","cni.dev/valid-attachments":[]}`, 2},
		{`{"name":"net","cni.dev/valid-attachments":[{"containerID":"c2","ifname":"eth0"}]}`, 1}, {`{"name":"net","cni.dev/valid-attachments":[]}`, 0},
	} {
		if err := w.keeper.Collect(t.Context(), &dhcprpc.Args{StdinData: []byte(tc.conf)}); err != nil || w.keeper.Attachments() != tc.left {
			t.Errorf("%s: %d left, %v", tc.conf, w.keeper.Attachments(), err)
		}
	}
	dhcptest.Eventually(t, "both are released", func() bool { return s.Count("DHCPRELEASE") >= 2 })
}
