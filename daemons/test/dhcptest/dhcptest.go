// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package dhcptest gives tests a network with a DHCP server. It has a bridge in the test's own
// namespace, real servers on the bridge, and containers connected to the bridge. Tests run in the
// namespaces of internal/test/nettest.
package dhcptest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/netns"
)

// LAN makes a bridge with addresses in CIDR notation. If the bridge exists, LAN uses it and does
// not delete it.
func LAN(t testing.TB, name string, addrs ...string) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	br := &netlink.Bridge{LinkAttrs: attrs}
	if err := netlink.LinkAdd(br); !errors.Is(err, unix.EEXIST) {
		must(t, err)
		t.Cleanup(func() { must(t, netlink.LinkDel(br)) })
	}
	must(t, netlink.LinkSetUp(br))
	for _, a := range addrs {
		SetAddr(t, name, a)
	}
}

// SetAddr adds an address without looking for duplicates.
func SetAddr(t testing.TB, link, addr string) {
	t.Helper()
	l, err := netlink.LinkByName(link)
	must(t, err)
	a, err := netlink.ParseAddr(addr)
	must(t, err)
	if a.IP.To4() == nil {
		a.Flags = unix.IFA_F_NODAD
	}
	must(t, netlink.AddrAdd(l, a))
}

// Plug makes eth0 in a namespace, as a port of the bridge.
func Plug(t testing.TB, bridge, ns string) {
	t.Helper()
	br, err := netlink.LinkByName(bridge)
	must(t, err)
	fd, err := vnetns.GetFromPath(ns)
	must(t, err)
	defer fd.Close() //nolint:errcheck // read only
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MasterIndex = "p"+rand.Text()[:8], br.Attrs().Index // the kernel deletes the last test's link late, so the name is random
	port := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(fd)}
	must(t, netlink.LinkAdd(port))
	must(t, netlink.LinkSetUp(port))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Quiet turns IPv6 off in a namespace. If it is called before Plug, no address appears by itself.
func Quiet(t testing.TB, path string) {
	t.Helper()
	ipv6(t, path, "disable_ipv6", "1")
}

// NoDAD turns duplicate address detection off in a namespace. If it is called before Plug, an
// interface has its link-local address at once, not after 1-2 s.
func NoDAD(t testing.TB, path string) {
	t.Helper()
	ipv6(t, path, "accept_dad", "0")
}

// ipv6 sets a parameter of IPv6 for all interfaces that a namespace has or gets.
func ipv6(t testing.TB, path, key, value string) {
	t.Helper()
	ns, err := netns.Open(path)
	must(t, err)
	defer ns.Close() //nolint:errcheck // read only
	must(t, ns.Do(func() error {
		for _, conf := range []string{"all", "default"} {
			if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+conf+"/"+key, []byte(value), 0o644); err != nil {
				return err
			}
		}
		return nil
	}))
}

// Server is a running DHCP server.
type Server struct {
	t    testing.TB
	name string
	path string
	args []string
	cmd  *exec.Cmd
	log  *Log
}

// Log collects a program's output.
type Log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write appends to it.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// Printf adds a line.
func (l *Log) Printf(format string, args ...any) {
	fmt.Fprintf(l, time.Now().Format("05.000 ")+format+"\n", args...) //nolint:errcheck // memory
}

// String is the whole output.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Dnsmasq starts dnsmasq on a bridge. args set the addresses that it assigns.
func Dnsmasq(t testing.TB, bridge string, args ...string) *Server {
	t.Helper()
	nettest.Need(t, nettest.Program("dnsmasq"))
	dir := t.TempDir()
	return run(t, "dnsmasq", append([]string{
		"--no-daemon", "--conf-file=/dev/null", "--port=0", "--no-ping", "--log-facility=-", "--log-dhcp", "--no-resolv",
		"--pid-file=" + filepath.Join(dir, "pid"), "--dhcp-leasefile=" + filepath.Join(dir, "leases"),
		"--interface=" + bridge, "--bind-interfaces", "--dhcp-authoritative",
	}, args...)...)
}

// Kea starts a server of ISC Kea on a bridge. program is kea-dhcp4 or kea-dhcp6; section is its
// part of the configuration. The server tries again to listen until the bridge is up.
func Kea(t testing.TB, program, bridge, section string) *Server {
	t.Helper()
	nettest.Need(t, nettest.Program(program))
	dir := t.TempDir()
	name := map[string]string{"kea-dhcp4": "Dhcp4", "kea-dhcp6": "Dhcp6"}[program]
	conf := fmt.Sprintf(`{%q: {"lease-database": {"type": "memfile", "persist": false}, %s,
		"interfaces-config": {"interfaces": [%q], "service-sockets-max-retries": 30000, "service-sockets-retry-wait-time": 20},
		"loggers": [{"name": "*", "severity": "INFO", "output_options": [{"output": "stdout"}]}]}}`, name, section, bridge)
	path := filepath.Join(dir, "conf.json")
	must(t, os.WriteFile(path, []byte(conf), 0o600))
	must(t, os.MkdirAll("/var/lib/kea", 0o755)) // the test's own directory, in which the server keeps its DUID
	t.Setenv("KEA_PIDFILE_DIR", dir)
	t.Setenv("KEA_LOCKFILE_DIR", dir)
	return run(t, program, "-c", path)
}

func run(t testing.TB, name string, args ...string) *Server {
	t.Helper()
	s := &Server{t: t, name: name, path: outside(t, name), args: args, log: new(Log)}
	t.Cleanup(func() {
		s.Stop()
		if t.Failed() {
			t.Logf("%s said:\n%s", name, s.log)
		}
	})
	s.Start()
	return s
}

// outside copies a program to a path without an AppArmor profile. Debian's AppArmor profiles allow
// DHCP servers to open only system files, not the test's files.
func outside(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	must(t, err)
	data, err := os.ReadFile(path)
	must(t, err)
	out := filepath.Join(t.TempDir(), name)
	must(t, os.WriteFile(out, data, 0o755))
	return out
}

// Start starts the server again.
func (s *Server) Start() {
	s.t.Helper()
	s.cmd = exec.Command(s.path, s.args...)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	must(s.t, s.cmd.Start())
	s.WaitFor("started", "sockets bound exclusively", "DHCP4_STARTED", "DHCP6_STARTED")
}

// Stop ends the server. Its leases may be kept or not.
func (s *Server) Stop() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	s.cmd = nil
}

// WaitFor waits until the server has logged one of these words.
func (s *Server) WaitFor(words ...string) {
	s.t.Helper()
	Eventually(s.t, s.name+" says "+words[0], func() bool { return s.Said(words...) })
}

// Said reports whether the server has logged one of these words.
func (s *Server) Said(words ...string) bool {
	text := s.log.String()
	for _, w := range words {
		if strings.Contains(text, w) {
			return true
		}
	}
	return false
}

// Count returns how often the server has logged a word.
func (s *Server) Count(word string) int { return strings.Count(s.log.String(), word) }

// patience is how long tests wait.
const patience = time.Minute

// Eventually waits until ok returns true.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("waited in vain: %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Addrs lists the addresses of eth0 in a namespace, except link-local ones.
func Addrs(t testing.TB, ns string) (out []string) {
	t.Helper()
	in(t, ns, func(h *netlink.Handle, link netlink.Link) {
		addrs, err := h.AddrList(link, netlink.FAMILY_ALL)
		must(t, err)
		for _, a := range addrs {
			if !a.IP.IsLinkLocalUnicast() {
				out = append(out, a.IPNet.String())
			}
		}
	})
	return out
}

// Routes lists the routes through gateways of eth0 in a namespace.
func Routes(t testing.TB, ns string) (out []string) {
	t.Helper()
	in(t, ns, func(h *netlink.Handle, link netlink.Link) {
		routes, err := h.RouteList(link, netlink.FAMILY_V4)
		must(t, err)
		for _, r := range routes {
			if r.Gw != nil {
				out = append(out, fmt.Sprintf("%v via %v metric %d", r.Dst, r.Gw, r.Priority))
			}
		}
	})
	return out
}

// Configure configures eth0 with a result, as a plugin does.
func Configure(t testing.TB, ns, addr, gateway string) {
	t.Helper()
	in(t, ns, func(h *netlink.Handle, link netlink.Link) {
		a, err := netlink.ParseAddr(addr)
		must(t, err)
		must(t, h.AddrAdd(link, a))
		must(t, h.LinkSetUp(link))
		if gateway != "" {
			must(t, h.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: netip.MustParseAddr(gateway).AsSlice()}))
		}
	})
}

// Unplug deletes eth0.
func Unplug(t testing.TB, ns string) {
	t.Helper()
	in(t, ns, func(h *netlink.Handle, link netlink.Link) { must(t, h.LinkDel(link)) })
}

func in(t testing.TB, ns string, fn func(*netlink.Handle, netlink.Link)) {
	t.Helper()
	fd, err := vnetns.GetFromPath(ns)
	must(t, err)
	defer fd.Close() //nolint:errcheck // read only
	h, err := netlink.NewHandleAt(fd)
	must(t, err)
	defer h.Close()
	link, err := h.LinkByName("eth0")
	must(t, err)
	fn(h, link)
}

// Up sets eth0 up.
func Up(t testing.TB, ns string) {
	t.Helper()
	in(t, ns, func(h *netlink.Handle, link netlink.Link) { must(t, h.LinkSetUp(link)) })
}

// Move moves eth0 from one namespace to another, where its name is eth0 again. The kernel removes
// its addresses.
func Move(t testing.TB, from, to string) {
	t.Helper()
	in(t, from, func(h *netlink.Handle, link netlink.Link) {
		fd, err := vnetns.GetFromPath(to)
		must(t, err)
		defer fd.Close() //nolint:errcheck // read only
		must(t, h.LinkSetNsFd(link, int(fd)))
	})
	Up(t, to)
}
