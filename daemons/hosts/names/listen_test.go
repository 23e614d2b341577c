// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package names

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/netns"
)

// container is a namespace on a link of this one.
func container(t *testing.T, name, link, gateway string, addresses ...string) *nl.Conn {
	t.Helper()
	ns, err := netns.Open(nettest.NewNS(t, name))
	must(t, err)
	inside, err := nl.In(ns, "/proc")
	must(t, err)
	t.Cleanup(inside.Close)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = link
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(inside.NS.Fd())}
	must(t, netlink.LinkAdd(veth))
	t.Cleanup(func() { netlink.LinkDel(veth) }) //nolint:errcheck // it may be gone with the namespace
	for _, g := range strings.Fields(gateway) {
		must(t, netlink.AddrAdd(veth, addr(t, g)))
	}
	must(t, netlink.LinkSetUp(veth))
	far, err := inside.LinkByName("eth0")
	must(t, err)
	for _, a := range addresses {
		must(t, inside.AddrAdd(far, addr(t, a)))
	}
	must(t, inside.LinkSetUp(far))
	return inside
}

func addr(t *testing.T, s string) *netlink.Addr {
	t.Helper()
	a, err := netlink.ParseAddr(s)
	must(t, err)
	if a.IP.To4() == nil {
		a.Flags = unix.IFA_F_NODAD
	}
	return a
}

// askIn sends one query from a namespace.
func askIn(inside *nl.Conn, server, name string, qtype uint16) (reply *dns.Msg, err error) {
	err = inside.Do(func() error {
		c := dns.Client{Timeout: 10 * time.Second}
		reply, _, err = c.Exchange(query(name, qtype), net.JoinHostPort(server, "53"))
		return err
	})
	return reply, err
}

// The server starts before its addresses exist. The address at which a query arrives determines
// the query's network.
func TestGateways(t *testing.T) {
	s := &Server{View: testBook(), Upstreams: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.11:53")}, Log: t.Logf}
	serve(t, s, map[string]string{"10.40.1.1": "blue", "fd40:1::1": "blue", "10.50.1.1": "Red.net"})
	blue := container(t, "blue", "gw-blue", "10.40.1.1/24 fd40:1::1/64", "10.40.1.77/24", "fd40:1::77/64")
	red := container(t, "red", "gw-red", "10.50.1.1/24", "10.50.1.77/24")
	for _, tc := range []struct {
		from   *nl.Conn
		server string
		want   string
	}{
		{blue, "10.40.1.1", "10.40.1.5 10.40.2.5"},
		{blue, "fd40:1::1", "10.40.1.5 10.40.2.5"},
		{red, "10.50.1.1", "10.50.1.5"},
	} {
		reply, err := askIn(tc.from, tc.server, "web", dns.TypeA)
		if err != nil || strings.Join(answers(reply), " ") != tc.want {
			t.Errorf("%s: %v, %v", tc.server, reply, err)
		}
	}

	// A client cannot query another network through that network's gateway.
	far, err := red.LinkByName("eth0")
	must(t, err)
	must(t, red.RouteAdd(&netlink.Route{LinkIndex: far.Attrs().Index, Dst: &net.IPNet{IP: net.IPv4(10, 40, 1, 1), Mask: net.CIDRMask(32, 32)}}))
	if reply, err := askIn(red, "10.40.1.1", "web", dns.TypeA); err != nil || reply.Rcode != dns.RcodeRefused {
		t.Errorf("from another network: %v, %v", reply, err)
	}
	busybox(t, blue)

	// When the list of addresses changes, queries on the addresses that stay are not disturbed.
	list := map[netip.Addr]string{netip.MustParseAddr("10.40.1.1"): "blue", netip.MustParseAddr("10.50.1.1"): "blue"}
	before := s.listening[netip.MustParseAddr("10.40.1.1")]
	must(t, s.Listen(list))
	if s.listening[netip.MustParseAddr("10.40.1.1")] != before || len(s.listening) != 2 {
		t.Errorf("%v", s.listening)
	}
	if reply, err := askIn(red, "10.50.1.1", "web", dns.TypeA); err != nil || reply.Rcode != dns.RcodeRefused {
		t.Errorf("an address that is another network's now: %v, %v", reply, err)
	}
	if _, err := askIn(blue, "fd40:1::1", "web", dns.TypeA); err == nil {
		t.Errorf("an address that is given up still answers")
	}
}

// busybox runs the resolver of many container images.
func busybox(t *testing.T, inside *nl.Conn) {
	t.Helper()
	if nettest.Program("busybox").Probe() != nil {
		return
	}
	for args, want := range map[string][]string{
		"four 10.40.1.1":      {"Address: 10.40.1.6"},
		"db.blue fd40:1::1":   {"Address: 10.40.1.7", "Address: fd40:1::7"},
		"10.40.1.6 10.40.1.1": {"name = four.blue"},
		"nobody 10.40.1.1":    {"can't find nobody: NXDOMAIN"},
	} {
		var out []byte
		_ = inside.Do(func() (err error) {
			out, err = exec.Command("busybox", append([]string{"nslookup"}, strings.Fields(args)...)...).CombinedOutput()
			return err // of an unknown name; the text shows it
		})
		for _, w := range want {
			if !strings.Contains(string(out), w) {
				t.Errorf("busybox nslookup %s: %q is missing in\n%s", args, w, out)
			}
		}
	}
}

// Listen reports an address that another program uses, and listens on the others.
func TestTaken(t *testing.T) {
	theirs, err := net.ListenPacket("udp", "127.0.3.1:53")
	must(t, err)
	defer theirs.Close() //nolint:errcheck // a test
	s := &Server{View: testBook()}
	defer s.Close()
	list := map[netip.Addr]string{netip.MustParseAddr("127.0.3.1"): "blue", netip.MustParseAddr("127.0.3.2"): "Red.net"}
	if err := s.Listen(list); err == nil || !strings.Contains(err.Error(), "network blue: listen udp 127.0.3.1:53: bind: address already in use: another program answers there") {
		t.Errorf("%v", err)
	}
	if reply := exchangeWith(t, "127.0.3.2", query("web", dns.TypeA), "udp"); len(reply.Answer) != 1 {
		t.Errorf("%v", reply)
	}
	must(t, theirs.Close())
	must(t, s.Listen(list))
	if reply := exchangeWith(t, "127.0.3.1", query("web", dns.TypeA), "tcp"); len(reply.Answer) != 2 {
		t.Errorf("%v", reply)
	}
}

// An address is free as soon as the server gives it up.
func TestAddressIsFreedAtOnce(t *testing.T) {
	s := &Server{View: testBook(), Log: t.Logf}
	defer s.Close()
	at := netip.MustParseAddr("127.0.2.1")
	for i := range 200 {
		must(t, s.Listen(map[netip.Addr]string{at: []string{"blue", "Red.net"}[i%2]}))
		if i%10 == 0 {
			exchangeWith(t, "127.0.2.1", query("web", dns.TypeA), []string{"udp", "tcp"}[i/10%2])
		}
	}
}

// Queries that wait for an upstream are limited. Meanwhile the server answers names of
// containers. Close does not wait for those queries.
func TestBounds(t *testing.T) {
	hole, err := net.ListenPacket("udp", "127.0.1.97:53")
	must(t, err)
	defer hole.Close() //nolint:errcheck // a test
	s := &Server{View: testBook(), Upstreams: []netip.AddrPort{netip.MustParseAddrPort("127.0.1.97:53")}}
	serve(t, s, map[string]string{"127.0.2.1": "blue"})
	question, err := query("x.example.org", dns.TypeA).Pack()
	must(t, err)
	flood := func(containers int, until func() bool) {
		t.Helper()
		var all []net.Conn
		for i := range containers {
			d := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.IPv4(127, 0, 3, byte(i+1))}}
			c, err := d.DialContext(context.Background(), "udp", "127.0.2.1:53")
			must(t, err)
			defer c.Close() //nolint:errcheck // a test
			all = append(all, c)
		}
		for end := time.Now().Add(20 * time.Second); !until(); {
			if time.Now().After(end) {
				t.Fatalf("%d are forwarded", s.forward.under())
			}
			for _, c := range all {
				_, err := c.Write(question)
				must(t, err)
			}
		}
	}
	sent := 0
	flood(1, func() bool { sent++; return sent > 2*maxForwards })
	if n := s.forward.under(); n > maxForwards/(partOfFree+1) {
		t.Errorf("%d of one container", n)
	}
	full := func() bool { return s.forward.under() > maxForwards/2 }
	flood(8, full)
	if from := (client{udp: true, addr: netip.MustParseAddr("127.0.4.1")}); !s.forward.begin(from) {
		t.Error("another client gets no place")
	} else {
		s.forward.end(from)
	}
	c := dns.Client{Timeout: 2 * time.Second}
	reply, _, err := c.Exchange(query("four", dns.TypeA), "127.0.2.1:53")
	for range 10 { // the kernel drops what does not fit into the socket's buffer; resolvers ask again
		if err == nil {
			break
		}
		reply, _, err = c.Exchange(query("four", dns.TypeA), "127.0.2.1:53")
	}
	if must(t, err); len(reply.Answer) != 1 {
		t.Errorf("%v", reply)
	}
	flood(8, full) // they may have ended meanwhile
	started := time.Now()
	s.Close()
	if took := time.Since(started); took > time.Second && s.forward.under() == 0 {
		t.Errorf("closing took %v, until no query waited", took)
	}
}

// under returns the number of queries under way.
func (f *forwarder) under() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.busy
}

// Silent connections keep other clients out only for a short time. The connections of a single
// container never keep others out.
func TestIdleConnections(t *testing.T) {
	serve(t, &Server{View: testBook()}, map[string]string{"127.0.2.1": "blue"})
	hold := func(from string, n int) {
		for range n {
			d := net.Dialer{Timeout: 10 * time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
			c, err := d.DialContext(context.Background(), "tcp", "127.0.2.1:53")
			must(t, err)
			t.Cleanup(func() { c.Close() }) //nolint:errcheck // a test
		}
	}
	hold("127.0.3.1", 2*maxConns)
	began := time.Now()
	if reply := exchangeWith(t, "127.0.2.1", query("four", dns.TypeA), "tcp"); len(reply.Answer) != 1 {
		t.Errorf("%v", reply)
	}
	if took := time.Since(began); took > idle {
		t.Errorf("one container kept another waiting for %v", took)
	}
	for i := range 4 {
		hold(fmt.Sprintf("127.0.3.%d", i+2), maxConns/4)
	}
	if reply := exchangeWith(t, "127.0.2.1", query("four", dns.TypeA), "tcp"); len(reply.Answer) != 1 {
		t.Errorf("%v", reply)
	}
}
