// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/spec"
)

// route_localnet is set while an attachment needs it, and not longer. A value that an operator
// set remains.
func TestRouteLocalnet(t *testing.T) {
	n, web, other := world(t)
	const key = "net/ipv4/conf/cni0/route_localnet"
	want := func(when, value string) {
		t.Helper()
		if got := n.Host.ReadSysctl(key); got != value {
			t.Errorf("%s: route_localnet is %s, want %s", when, got, value)
		}
	}
	a, b := of(web), of(other)
	a.must(t, spec.Add, ports(webPort))
	b.must(t, spec.Add, ports(`{"hostPort": 81, "containerPort": 80}`))
	a.del(t)
	want("one left", "1")
	b.del(t)
	want("none left", "0")
	nothingLeft(t)
	n.Host.Sysctl(key, "1")
	a.must(t, spec.Add, ports(webPort))
	a.del(t)
	want("opened by the operator", "1")
	n.Host.Sysctl(key, "0")
	a.must(t, spec.Add, ports(webPort))
	n.Host.Sysctl(key, "0")
	if err := a.call(t, spec.Check, ports(webPort)); err == nil || !strings.Contains(err.Error(), "route_localnet is 0") {
		t.Errorf("CHECK: %v", err)
	}
	n.Host.Delete("cni0")
	a.del(t)
	nothingLeft(t)
}

// With route_localnet, the kernel would let a container pretend to be a program of the host. The reverse path filter of most distributions
// hides that.
func TestLoopbackSource(t *testing.T) {
	n, web, other := world(t)
	for _, link := range []string{"all", "cni0"} {
		n.Host.Sysctl("net/ipv4/conf/"+link+"/rp_filter", "0")
	}
	a := of(web)
	a.must(t, spec.Add, ports(webPort))
	t.Cleanup(func() { a.must(t, spec.Del, "{}") })
	other.LocalnetVia("eth0", "10.1.0.1")
	var server net.PacketConn
	if err := n.Host.Do(func() (err error) { server, err = net.ListenPacket("udp4", ":9999"); return err }); err != nil {
		t.Fatal(err)
	}
	defer server.Close()                                                    //nolint:errcheck // a test
	for _, from := range []string{"127.0.0.2", "127.255.0.9", "10.1.0.6"} { // the last one is heard, so the others were not
		if err := other.Do(func() error {
			c, err := (&net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(from)}, Control: anySource}).Dial("udp4", "10.1.0.1:9999")
			if err != nil {
				return err
			}
			defer c.Close() //nolint:errcheck // a test
			_, err = c.Write([]byte(from))
			return err
		}); err != nil {
			t.Fatalf("send from %s: %v", from, err)
		}
	}
	buf := make([]byte, 100)
	_ = server.SetReadDeadline(time.Now().Add(10 * time.Second))
	length, _, err := server.ReadFrom(buf)
	if got := string(buf[:length]); err != nil || got != "10.1.0.6" {
		t.Errorf("a program of the host first hears %q (%v)", got, err)
	}
}

// anySource lets a socket send from an address that its host does not have.
func anySource(_, _ string, c syscall.RawConn) (err error) {
	cerr := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT, 1) })
	return errors.Join(cerr, err)
}

// The last holder is removed while the next is added. Every attachment has route_localnet all the
// time, and in the end it is reset.
func TestRouteLocalnetRace(t *testing.T) {
	n, web, other := world(t)
	const key = "net/ipv4/conf/cni0/route_localnet"
	var both sync.WaitGroup
	for i, a := range []*attachment{of(web), of(other)} {
		conf := ports(fmt.Sprintf(`{"hostPort": %d, "containerPort": 80}`, 80+i))
		both.Go(func() {
			for range 100 {
				if err := a.call(t, spec.Add, conf); err != nil {
					t.Error(err)
				}
				if got := n.Host.ReadSysctl(key); got != "1" {
					t.Errorf("route_localnet is %s while a port is published", got)
				}
				if err := a.call(t, spec.Del, conf); err != nil {
					t.Error(err)
				}
			}
		})
	}
	both.Wait()
	if got := n.Host.ReadSysctl(key); got != "0" {
		t.Errorf("route_localnet is %s when no port is published", got)
	}
	nothingLeft(t)
}

// If the host has an address too, no container can publish ports with it. The address's route
// leads to the loopback interface, and a guard there would drop all of 127.0.0.0/8.
func TestAddressOfTheHost(t *testing.T) {
	for _, addr := range []string{"10.1.0.5", "fd00:1::5"} {
		for name, conf := range map[string]string{"snat": ports(both), "no snat": ports(both, `"snat": false`)} {
			t.Run(addr+" "+name, func(t *testing.T) {
				n, web, _ := world(t)
				giveToHost(t, n, addr)
				a := of(web)
				if err := a.call(t, spec.Add, conf); err == nil || !strings.Contains(err.Error(), "cannot publish ports of "+addr+": the host has this address itself") {
					t.Errorf("ADD: %v", err)
				}
				a.dry = func(string) {}
				if err := a.call(t, spec.Add, conf); err == nil {
					t.Error("explain finds nothing")
				}
				nothingLeft(t)
				n.Host.Serve("tcp", "127.0.0.1:99")
				expect(t, "the host's loopback", n.Host, "tcp", "127.0.0.1:99", "host 127.0.0.1")
			})
		}
	}
}

// giveToHost adds an address to the host and waits until the kernel treats it as local. For an
// IPv6 address that takes some time.
func giveToHost(t *testing.T, n *node.Node, addr string) {
	t.Helper()
	a := netip.MustParseAddr(addr)
	n.Host.Address("uplink", netip.PrefixFrom(a, a.BitLen()).String())
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if routes, err := n.Host.Conn().RouteGet(a.AsSlice()); err == nil && routes[0].Type == unix.RTN_LOCAL {
			return
		}
	}
	t.Fatalf("%s is not the host's", addr)
}

// The host gets the container's address after the ADD. CHECK reports it.
func TestAddressOfTheHostLater(t *testing.T) {
	n, web, _ := world(t)
	a := of(web)
	a.must(t, spec.Add, ports(both))
	giveToHost(t, n, "10.1.0.5")
	if err := a.call(t, spec.Check, ports(both)); err == nil || !strings.Contains(err.Error(), "the host has this address itself") {
		t.Errorf("CHECK: %v", err)
	}
	a.del(t)
	nothingLeft(t)
}

// The previous result names the IPv6 address first, and the host reaches it by another link. The IPv4
// address decides which link gets route_localnet.
func TestIPv6First(t *testing.T) {
	n, web, _ := world(t)
	a := of(web)
	slices.Reverse(a.prev.IPs)
	n.Host.Route("fd00:1::5/128", "2001:db8:1::2")
	a.must(t, spec.Add, ports(webPort))
	t.Cleanup(func() { a.del(t) })
	expect(t, "host by 127.0.0.1", n.Host, "tcp", "127.0.0.1:8080", "web 10.1.0.1")
	a.must(t, spec.Check, ports(webPort))
}
