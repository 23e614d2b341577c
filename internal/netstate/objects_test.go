// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/netns"
)

func TestMain(m *testing.M) { nettest.Main(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newEnv opens the host's and a container's namespace.
func newEnv(t *testing.T) *Env {
	t.Helper()
	host, err := nl.Host("/proc")
	must(t, err)
	t.Cleanup(host.Close)
	sandbox := newSandbox(t, "c")
	t.Cleanup(func() {
		for _, name := range []string{"br0", "v0"} {
			if l, err := host.Link(name); err == nil {
				must(t, host.LinkDel(l))
			}
		}
	})
	return &Env{Host: host, Sandbox: sandbox, Warn: func(err error) { t.Log("warning:", err) }}
}

func newSandbox(t *testing.T, name string) *nl.Conn {
	t.Helper()
	ns, err := netns.Open(nettest.NewNS(t, name))
	must(t, err)
	sandbox, err := nl.In(ns, "/proc")
	must(t, err)
	t.Cleanup(sandbox.Close)
	return sandbox
}

// again drops the cache, because a later call starts without one.
func again(env *Env) *Env {
	return &Env{Host: env.Host, Sandbox: env.Sandbox, Warn: env.Warn}
}

var (
	testVeth = Veth{
		Name: "v0", Peer: "eth0", Bridge: "br0", Owner: "abcdefghijklmno",
		MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, PeerMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2},
	}
	testState = State{
		Bridge{Name: "br0", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 3}, MTU: 1400, Promisc: true},
		testVeth,
		IPv6{Where: Sandbox, Needed: "needed", List: []LinkIPv6{{"eth0", nl.DisableIPv6, 0}, {"eth0", nl.KeepAddrOnDown, 1}}},
		Addr{Where: Sandbox, Link: "eth0", Prefix: netip.MustParsePrefix("10.9.0.5/24")},
		Addr{Where: Sandbox, Link: "eth0", Prefix: netip.MustParsePrefix("fd09::5/64")},
		Up{Where: Sandbox, Link: "eth0", Notify: true},
		Route{Where: Sandbox, Link: "eth0", Dst: netip.MustParsePrefix("10.0.0.0/8"), Gateway: netip.MustParseAddr("10.9.0.1"), MTU: 1300},
		Route{Where: Sandbox, Link: "eth0", Dst: netip.MustParsePrefix("::/0"), Gateway: netip.MustParseAddr("fd09::1"), Table: 7},
		Gateway{Link: "br0", Prefix: netip.MustParsePrefix("10.9.0.1/24")},
		Forwarding{IPv4: true, IPv6: true},
		Sysctls{Where: Sandbox, Needed: "needed", List: []nl.Setting{{Key: "net/ipv4/conf/eth0/arp_ignore", Value: "2"}}},
		PortUp{Link: "v0"},
		Settle{Link: "eth0"},
		Announce{Link: "eth0"},
	}
)

// TestObjects ensures each object. Diff sees the object, and the undos revert the attachment's
// own changes in reverse order.
func TestObjects(t *testing.T) {
	env := newEnv(t)
	must(t, env.Host.SetSysctl("net/ipv4/ip_forward", "0"))
	if diffs, err := testState.Diff(t.Context(), again(env)); err != nil || !diffs.Any() {
		t.Errorf("before: %v %v", diffs, err)
	}
	var undos []func(context.Context) error
	a := Applier{Env: env, Undo: func(f func(context.Context) error) { undos = append(undos, f) }}
	must(t, a.Apply(t.Context(), testState))
	diffs, err := testState.Diff(t.Context(), again(env))
	if err != nil || diffs.Any() {
		t.Errorf("after: %v %v", diffs, err)
	}
	for i := len(undos) - 1; i >= 0; i-- {
		must(t, undos[i](t.Context()))
	}
	if _, err := env.Host.Link("v0"); !nl.IsNotFound(err) {
		t.Errorf("v0 stayed: %v", err)
	}
	if _, err := env.Host.Link("br0"); err != nil {
		t.Errorf("the network's bridge went: %v", err)
	}
}

// The link stays. Each undo reverts its change on the link.
func TestUndoOnStandingLink(t *testing.T) {
	env := newEnv(t)
	for _, o := range testState[:2] {
		_, err := o.Ensure(t.Context(), env)
		must(t, err)
	}
	for _, o := range (State{
		Addr{Where: Sandbox, Link: "eth0", Prefix: netip.MustParsePrefix("10.9.0.5/24"), NoRoute: true},
		Up{Where: Sandbox, Link: "eth0"},
		Route{Where: Sandbox, Link: "eth0", Dst: netip.MustParsePrefix("10.0.0.0/8"), Scope: unix.RT_SCOPE_LINK},
		Sysctls{Where: Sandbox, Needed: "needed", List: []nl.Setting{{Key: "net/ipv4/conf/eth0/arp_ignore", Value: "2"}}},
	}) {
		if _, route := o.(Route); route {
			_, err := (Up{Where: Sandbox, Link: "eth0"}).Ensure(t.Context(), env)
			must(t, err)
		}
		undo, err := o.Ensure(t.Context(), env)
		must(t, err)
		if undo == nil {
			t.Fatalf("%s: nothing to undo", o)
		}
		if d, err := o.Diff(t.Context(), again(env)); d != "" || err != nil {
			t.Errorf("%s: %s %v", o, d, err)
		}
		must(t, undo(t.Context()))
		if d, err := o.Diff(t.Context(), again(env)); d == "" || err != nil {
			t.Errorf("%s: not undone (%v)", o, err)
		}
		must(t, undo(t.Context())) // the undo accepts that its object is gone
	}
}

// A second pair with the same name is refused, and the first pair stays.
func TestVethTaken(t *testing.T) {
	env := newEnv(t)
	for _, o := range testState[:2] {
		_, err := o.Ensure(t.Context(), env)
		must(t, err)
	}
	_, err := testVeth.Ensure(t.Context(), again(env))
	if err == nil || err.Error() != `container veth name ("eth0") peer provided ("v0") already exists` {
		t.Errorf("got %v", err)
	}
	if d, err := testVeth.Diff(t.Context(), again(env)); d != "" || err != nil {
		t.Errorf("%s %v", d, err)
	}
}

// Ensure waits for a port that comes up late. If a port does not come up in time, the error has
// the reference's text.
func TestPortUpLate(t *testing.T) {
	env := newEnv(t)
	for _, o := range testState[:2] {
		_, err := o.Ensure(t.Context(), env)
		must(t, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := PortUp{Link: "v0"}.Ensure(ctx, env)
	if err == nil || !strings.Contains(err.Error(), "bridge port in error state: ") {
		t.Errorf("got %v", err)
	}
	done := make(chan error)
	go func() {
		_, err := PortUp{Link: "v0"}.Ensure(t.Context(), env)
		done <- err
	}()
	far, err := env.Sandbox.Link("eth0")
	must(t, err)
	must(t, env.Sandbox.SetUp(far.Attrs().Index, false))
	must(t, <-done)
}

// Sysctls that cannot be written become warnings. Missing keys are errors only where they are needed.
func TestSysctlsSurvive(t *testing.T) {
	env := newEnv(t)
	s := Sysctls{Where: Sandbox, List: []nl.Setting{{Key: "net/ipv4/conf/nobody/arp_ignore", Value: "1"}}}
	if _, err := s.Ensure(t.Context(), env); err != nil {
		t.Errorf("not needed: %v", err)
	}
	s.Needed = "failed to be nobody"
	if _, err := s.Ensure(t.Context(), env); err == nil || !strings.HasPrefix(err.Error(), "failed to be nobody: ") {
		t.Errorf("needed: %v", err)
	}
	must(t, unix.Mount("/proc/sys", "/proc/sys", "", unix.MS_BIND, ""))
	defer unix.Unmount("/proc/sys", unix.MNT_DETACH) //nolint:errcheck // the mounts are the test's
	must(t, unix.Mount("", "/proc/sys", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	fresh := newHost(t)
	var warned error
	env = &Env{Host: fresh, Warn: func(err error) { warned = err }}
	s = Sysctls{Where: Host, Needed: "needed", List: []nl.Setting{{Key: "net/ipv4/conf/lo/arp_ignore", Value: "3"}}}
	if _, err := s.Ensure(t.Context(), env); err != nil || !errors.Is(warned, nl.ErrReadOnly) {
		t.Errorf("read-only: %v, warned %v", err, warned)
	}
}

func newHost(t *testing.T) *nl.Conn {
	t.Helper()
	c, err := nl.Host("/proc")
	must(t, err)
	t.Cleanup(c.Close)
	return c
}

func TestGatewayCompare(t *testing.T) {
	have := []nl.Addr{
		{Prefix: netip.MustParsePrefix("10.1.0.1/24")}, {Prefix: netip.MustParsePrefix("fd01::1/64")}, {Prefix: netip.MustParsePrefix("fe80::1/64")},
	}
	for want, others := range map[string]string{
		"10.1.0.1/24":    "ok",
		"10.1.0.2/24":    "10.1.0.1/24",
		"10.2.0.1/24":    "10.1.0.1/24",
		"fd01::1/64":     "ok",
		"fd02::1/64":     "",
		"fd01::2/112":    "fd01::1/64",
		"fd01::1/48":     "fd01::1/64",
		"fd01:0:0:1::/8": "fd01::1/64",
	} {
		got, ok := Gateway{Prefix: netip.MustParsePrefix(want)}.Others(have)
		text := "ok"
		if !ok {
			var words []string
			for _, p := range got {
				words = append(words, p.String())
			}
			text = strings.Join(words, " ")
		}
		if text != others {
			t.Errorf("%s: got %q, want %q", want, text, others)
		}
	}
}

// A wait leaves no goroutine of the library behind, even if events arrive that no code reads.
func TestWaitLeavesNothing(t *testing.T) {
	env := newEnv(t)
	for _, o := range testState[:2] {
		_, err := o.Ensure(t.Context(), env)
		must(t, err)
	}
	before := runtime.NumGoroutine()
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		go func() {
			for ctx.Err() == nil {
				_ = env.Sandbox.SetAlias("eth0", "x", nl.PortFlags{})
				host, err := nl.Host("/proc")
				if err == nil {
					_ = host.SetAlias("br0", "x", nl.PortFlags{})
					host.Close()
				}
			}
		}()
		_, err := PortUp{Link: "v0"}.Ensure(ctx, env)
		if err == nil {
			t.Error("v0 is up")
		}
		cancel()
	}
	for end := time.Now().Add(time.Minute); runtime.NumGoroutine() > before && time.Now().Before(end); {
		runtime.Gosched()
	}
	if n := runtime.NumGoroutine(); n > before {
		t.Errorf("goroutines: %d, before %d", n, before)
	}
}

// A default route through another gateway is not the container's. A route that refuses packets
// and comes before the default route makes it useless. A default route through another link may
// be an operator's choice.
func TestOtherDefaultRoute(t *testing.T) {
	for _, c := range []struct{ addr, gateway, other, all string }{
		{"10.9.0.5/24", "10.9.0.1", "10.9.0.77", "0.0.0.0/0"}, {"fd09::5/64", "fd09::1", "fd09::77", "::/0"},
	} {
		t.Run(c.all, func(t *testing.T) { otherDefault(t, c.addr, c.gateway, c.other, c.all) })
	}
}

func otherDefault(t *testing.T, address, gateway, otherGateway, all string) {
	env := newEnv(t)
	route := Route{Where: Sandbox, Link: "eth0", Dst: netip.MustParsePrefix(all), Gateway: netip.MustParseAddr(gateway), Priority: 100}
	for _, o := range append(slices.Clone(testState[:2]), Addr{Where: Sandbox, Link: "eth0", Prefix: netip.MustParsePrefix(address)}, Up{Where: Sandbox, Link: "eth0"}, route) {
		_, err := o.Ensure(t.Context(), env)
		must(t, err)
	}
	differs := func(when string, want bool) {
		t.Helper()
		if d, err := route.Diff(t.Context(), again(env)); (d != "") != want || err != nil {
			t.Errorf("%s: %q %v", when, d, err)
		}
	}
	link, err := env.Link(Sandbox, "eth0")
	must(t, err)
	differs("as made", false)
	refusal := &netlink.Route{Type: unix.RTN_UNREACHABLE, Dst: nl.IPNet(route.Dst), Priority: 200}
	must(t, env.Sandbox.RouteAdd(refusal))
	differs("a refusal behind it", false)
	must(t, env.Sandbox.RouteDel(refusal))
	refusal.Priority = 50
	must(t, env.Sandbox.RouteAdd(refusal))
	differs("a refusal before it", true)
	must(t, env.Sandbox.RouteDel(refusal))
	must(t, env.Sandbox.DeleteRoute(route.message(link.Attrs().Index)))
	other := route
	other.Gateway = netip.MustParseAddr(otherGateway)
	must(t, env.Sandbox.AddRoute(other.message(link.Attrs().Index)))
	differs("another gateway", true)
}
