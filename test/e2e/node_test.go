// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"github.com/patchbay-net/patchbay/daemons/test/probe"
)

// These name the outside world, a namespace behind a veth. The near end of the veth has the
// node's own addresses.
var (
	node4, node6       = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	outside4, outside6 = netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")
)

var (
	loopback4 = netip.MustParseAddr("127.0.0.1")
	noAddr    netip.Addr // a caller whose address does not matter
)

// outside is the name of the outside world's namespace.
const outside = "outside"

// nsPath is the path of a named namespace; "" names the node's own, and a path itself.
func nsPath(name string) string {
	switch {
	case name == "":
		return "/proc/self/ns/net"
	case filepath.IsAbs(name):
		return name
	}
	return "/run/netns/" + name
}

// newOutside makes the outside world. It has no route to any container.
func newOutside(t *testing.T) {
	t.Helper()
	run(t, "ip", "netns", "add", outside)
	run(t, "ip", "link", "add", "uplink", "type", "veth", "peer", "name", "eth0", "netns", outside)
	run(t, "ip", "addr", "add", node4.String()+"/24", "dev", "uplink")
	run(t, "ip", "addr", "add", node6.String()+"/64", "dev", "uplink", "nodad")
	run(t, "ip", "link", "set", "uplink", "up")
	run(t, "ip", "-n", outside, "addr", "add", outside4.String()+"/24", "dev", "eth0")
	run(t, "ip", "-n", outside, "addr", "add", outside6.String()+"/64", "dev", "eth0", "nodad")
	run(t, "ip", "-n", outside, "link", "set", "lo", "up")
	run(t, "ip", "-n", outside, "link", "set", "eth0", "up")
}

// newNamespace makes a named network namespace that ends with the test.
func newNamespace(t *testing.T, name string) {
	t.Helper()
	run(t, "ip", "netns", "add", name)
	t.Cleanup(func() { deleteNamespace(t, name) })
}

// deleteNamespace removes a namespace if it still exists.
func deleteNamespace(t testing.TB, name string) {
	if _, err := os.Stat(nsPath(name)); err == nil {
		run(t, "ip", "netns", "del", name)
	}
}

// within calls f on a thread that is in the named namespace. The thread is not used again.
func within(name string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with us
		ns, err := netns.GetFromPath(nsPath(name))
		if err != nil {
			done <- fmt.Errorf("open namespace %s: %w", name, err)
			return
		}
		defer ns.Close()
		if err := netns.Set(ns); err != nil {
			done <- fmt.Errorf("enter namespace %s: %w", name, err)
			return
		}
		done <- f()
	}()
	return <-done
}

// knowFamilies lets the Go runtime find the supported address families, once for each process. In
// a namespace whose loopback is still down, Go would find no IPv6.
func knowFamilies() error {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		return err
	}
	return l.Close()
}

// serve starts a probe server in a namespace on all its addresses.
func serve(t *testing.T, ns string, port uint16) {
	t.Helper()
	err := within(ns, func() error {
		s, err := probe.Serve(fmt.Sprintf(":%d", port))
		if err == nil {
			t.Cleanup(func() { s.Close() })
		}
		return err
	})
	if err != nil {
		t.Fatalf("serve in %q: %v", ns, err)
	}
}

// who asks a server over TCP and UDP which address it sees. The request comes from a namespace.
func who(from string, addr netip.Addr, port uint16) (seen [2]netip.Addr, err error) {
	target := netip.AddrPortFrom(addr, port).String()
	err = within(from, func() error {
		for i, network := range []string{"tcp", "udp"} {
			as, err := probe.Who(network, target)
			if err != nil {
				return err
			}
			seen[i] = as.Addr()
		}
		return nil
	})
	return seen, err
}

// reaches fails the test unless the namespace reaches the server at addr:port and the server sees
// it as want. If want is noAddr, any address is right.
func reaches(t *testing.T, from string, addr netip.Addr, port uint16, want netip.Addr) {
	t.Helper()
	seen, err := who(from, addr, port)
	if err != nil {
		t.Errorf("from %q to %v port %d: %v", from, addr, port, err)
	} else if want != noAddr && seen != [2]netip.Addr{want, want} {
		t.Errorf("from %q to %v port %d: seen as %v over TCP and UDP, want %v", from, addr, port, seen, want)
	}
}

// refused fails the test when a server answers at addr:port.
func refused(t *testing.T, from string, addr netip.Addr, port uint16) {
	t.Helper()
	if seen, err := who(from, addr, port); err == nil {
		t.Errorf("from %q to %v port %d: answered (seen as %v), want nobody there", from, addr, port, seen)
	}
}

// fetch times taking n bytes from a server, seen from a namespace.
func fetch(t *testing.T, from string, addr netip.Addr, port uint16, n int64) (took time.Duration) {
	t.Helper()
	err := within(from, func() (err error) {
		took, err = probe.Fetch(netip.AddrPortFrom(addr, port).String(), n)
		return err
	})
	if err != nil {
		t.Errorf("fetch %d bytes from %v: %v", n, addr, err)
	}
	return took
}

// addrOf parses an address that a plugin returned.
func addrOf(t *testing.T, s string) netip.Addr {
	t.Helper()
	a, err := netip.ParseAddr(s)
	if err != nil {
		t.Fatal(err)
	}
	return a
}
