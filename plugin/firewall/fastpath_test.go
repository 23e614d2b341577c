// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/conntrack"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/spec"
)

const fast = `{"fastPath": true}`

// world is a container with the fast path, whose packets are masqueraded and which publishes port 8080.
// Another program counts what passes the forward hook.
func world(t *testing.T) (n *node.Node, c *node.Container, a *attachment) {
	t.Helper()
	nettest.Need(t, nettest.Flowtables())
	reset(t)
	n = node.New(t)
	c = n.Bridge("cni0", "10.1.0.1/24", "fd00:1::1/64").Container("c1", "10.1.0.5/24", "fd00:1::5/64")
	fw := nft.Open("")
	defer fw.Close() //nolint:errcheck // committed
	to := netip.MustParseAddrPort("10.1.0.5:80")
	fw.Add(nft.Masqueraded(netip.MustParsePrefix("10.1.0.5/24"), "")...)
	fw.Add(nft.Port(nft.Published{Protocol: 6, Port: 8080, To: to}, nil, ""))
	if err := fw.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	sh(t, `nft "add table inet other; add chain inet other forward { type filter hook forward priority -10; }; add rule inet other forward meta l4proto tcp counter; add rule inet other forward meta l4proto udp counter"`)
	a = of(c)
	a.must(t, spec.Add, fast)
	return n, c, a
}

// forwarded returns how many packets the forward hook has seen.
func forwarded(t *testing.T) (n int) {
	t.Helper()
	for _, m := range regexp.MustCompile(`packets (\d+)`).FindAllStringSubmatch(sh(t, "nft list chain inet other forward"), -1) {
		packets, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		n += packets
	}
	return n
}

const patience = 10 * time.Second

// echo starts a server that sends back what it gets, and returns a connection to it.
func echo(t testing.TB, network string, server *node.Space, listen string, client *node.Space, dial string) net.Conn {
	t.Helper()
	if network == "tcp" {
		return dialed(t, server, listen, client, dial, func(c net.Conn) { _, _ = io.Copy(c, c) })
	}
	err := server.Do(func() error {
		l, err := net.ListenPacket("udp", listen)
		if err == nil {
			t.Cleanup(func() { l.Close() }) //nolint:errcheck // a test
			go echoUDP(l)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return dialIn(t, client, network, dial)
}

func echoUDP(l net.PacketConn) {
	b := make([]byte, 2000)
	for {
		n, from, err := l.ReadFrom(b)
		if err != nil {
			return
		}
		_, _ = l.WriteTo(b[:n], from)
	}
}

// dialed starts a TCP server for one connection, and returns the client's end of it.
func dialed(t testing.TB, server *node.Space, listen string, client *node.Space, dial string, serve func(net.Conn)) net.Conn {
	t.Helper()
	err := server.Do(func() error {
		l, err := net.Listen("tcp", listen)
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() }) //nolint:errcheck // a test
		go func() {
			if c, err := l.Accept(); err == nil {
				serve(c)
				_ = c.Close()
			}
		}()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return dialIn(t, client, "tcp", dial)
}

func dialIn(t testing.TB, client *node.Space, network, addr string) (conn net.Conn) {
	t.Helper()
	err := client.Do(func() (err error) {
		conn, err = net.DialTimeout(network, addr, patience)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() }) //nolint:errcheck // a test
	return conn
}

// talk sends messages and waits for each to come back.
func talk(conn net.Conn, times int, wait time.Duration) error {
	out, in := bytes.Repeat([]byte("x"), 1000), make([]byte, 1000)
	for range times {
		if err := conn.SetDeadline(time.Now().Add(wait)); err != nil {
			return err
		}
		if _, err := conn.Write(out); err != nil {
			return err
		}
		if _, err := io.ReadFull(conn, in); err != nil {
			return err
		}
	}
	return nil
}

// skips checks that a connection works, and how many packets of it the forward hook sees.
func skips(t *testing.T, about string, conn net.Conn, want bool) {
	t.Helper()
	const times = 50
	if err := talk(conn, 3, patience); err != nil {
		t.Fatal(about, err)
	}
	before := forwarded(t)
	if err := talk(conn, times, patience); err != nil {
		t.Fatal(about, err)
	}
	seen := forwarded(t) - before
	const few = 3 // a change of any link makes the kernel look for the route again: one packet passes the hook
	if want && seen > few || !want && seen < 2*times {
		t.Errorf("%s: the forward hook has seen %d packets of %d messages and their answers", about, seen, times)
	}
	t.Logf("%s: the forward hook has seen %d packets of %d messages and their answers", about, seen, times)
}

// Established flows skip the forward hook in both directions and families, with masquerade and
// through a published port.
func TestFastPath(t *testing.T) {
	n, c, a := world(t)
	for _, f := range []struct {
		about, network, listen, dial string
		in                           bool
	}{
		{"TCP out, masqueraded", "tcp", "0.0.0.0:5001", node.Client4 + ":5001", false},
		{"TCP out over IPv6", "tcp", "[::]:5002", "[" + node.Client6 + "]:5002", false},
		{"UDP out, masqueraded", "udp", node.Client4 + ":5003", node.Client4 + ":5003", false},
		{"TCP to a published port", "tcp", "0.0.0.0:80", node.Uplink4 + ":8080", true},
	} {
		server, client := n.Client, c.Space
		if f.in {
			server, client = c.Space, n.Client
		}
		skips(t, f.about, echo(t, f.network, server, f.listen, client, f.dial), true)
	}
	if flows, err := os.ReadFile("/proc/thread-self/net/nf_conntrack"); err == nil {
		t.Logf("\n%s", flows)
	}
	a.must(t, spec.Check, fast)
	a.del(t)
	if left := sh(t, "nft list table inet patchbay"); strings.Contains(left, "fastpath") {
		t.Errorf("left:\n%s", left)
	}
}

// A connection survives the end of the fast path, and then passes the hook again.
func TestFastPathEnds(t *testing.T) {
	n, c, a := world(t)
	conn := echo(t, "tcp", n.Client, "0.0.0.0:5001", c.Space, node.Client4+":5001")
	skips(t, "with the fast path", conn, true)
	a.del(t)
	skips(t, "after the DEL", conn, false)
}

// When the conntrack entry of a flow is deleted, the flow ends at once: the next packet passes the
// forward hook as the first one of a new connection.
func TestFastPathAndConntrack(t *testing.T) {
	n, c, _ := world(t)
	conn := echo(t, "tcp", n.Client, "0.0.0.0:5001", c.Space, node.Client4+":5001")
	skips(t, "before", conn, true)
	sh(t, "nft add rule inet patchbay admin ip saddr 10.1.0.5 ct state new drop")
	skips(t, "with a rule against new connections", conn, true)
	ct, err := conntrack.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer ct.Close() //nolint:errcheck // a test
	server := netip.MustParseAddrPort(node.Client4 + ":5001")
	flows, err := ct.List(conntrack.Filter{Protocol: 6, OrigDst: server.Addr(), OrigDstPort: server.Port()})
	if err != nil || len(flows) != 1 {
		t.Fatal(flows, err)
	}
	if err := ct.Delete(flows[0]); err != nil {
		t.Fatal(err)
	}
	before := forwarded(t)
	if err := talk(conn, 1, time.Second); err == nil {
		t.Error("after the deletion of the conntrack entry the connection goes on")
	}
	if n := forwarded(t) - before; n == 0 {
		t.Error("after the deletion of the conntrack entry no packet passes the forward hook")
	}
}

// An ADD that fails at any step leaves no fast path, and GC removes that of a lost container.
func TestFastPathFaults(t *testing.T) {
	_, _, a := world(t)
	a.must(t, spec.GC, `{"cni.dev/valid-attachments": []}`)
	without := sh(t, "nft list table inet patchbay")
	if strings.Contains(without, "fastpath") {
		t.Errorf("after a GC:\n%s", without)
	}
	faults(t, a, fast, "")
	if after := sh(t, "nft list table inet patchbay"); after != without {
		t.Errorf("left:\n%s", after)
	}
}

// The kernel takes a deleted bridge out of the flowtable; CHECK of an attachment on a new bridge fails until
// repair.
func TestFastPathOfADeletedBridge(t *testing.T) {
	n, c, a := world(t)
	conn := echo(t, "tcp", n.Client, "0.0.0.0:5001", c.Space, node.Client4+":5001")
	skips(t, "before", conn, true)
	n.Host.Delete("cni0")
	if err := talk(conn, 1, time.Second); err == nil {
		t.Error("the connection goes on without its bridge")
	}
	if got := sh(t, "nft list flowtables"); !strings.Contains(got, "devices = { uplink }") {
		t.Errorf("flowtables:\n%s", got)
	}
	n.Bridge("cni0", "10.1.0.1/24", "fd00:1::1/64")
	if err := a.call(t, spec.Check, fast); err == nil || !strings.Contains(err.Error(), "does not put cni0 into flowtable") {
		t.Errorf("CHECK with a new bridge: %v", err)
	}
	a.must(t, spec.Add, fast)
	a.must(t, spec.Check, fast)
	a.del(t)
	nothingLeft(t, "")
}

// ADD is explained, and the uplink may change while containers run.
func TestFastPathOfUplinks(t *testing.T) {
	n, c, a := world(t)
	var lines []string
	dry := *a
	dry.dry = func(line string) { lines = append(lines, line) }
	dry.must(t, spec.Add, fast)
	want := "host: firewall: let established flows between bridge cni0 and uplink skip the hooks of every firewall; put cni0, uplink into flowtable fastpath\n" +
		"host: firewall: put cni0 into flowtable fastpath"
	if got := strings.Join(lines, "\n"); !strings.Contains(got, want) {
		t.Errorf("explained:\n%s", got)
	}
	sh(t, "ip route del default; ip -6 route del default")
	a.must(t, spec.Check, fast)
	b := *a
	b.id = "c2"
	b.must(t, spec.Add, fast)
	if !strings.Contains(b.stderr.String(), "no default route") {
		t.Errorf("ADD without a default route said %q", b.stderr.String())
	}
	conn := echo(t, "tcp", n.Router, "0.0.0.0:5001", c.Space, "192.0.2.2:5001")
	skips(t, "to the uplink of the first ADD", conn, true)
	b.del(t)
	a.del(t)
}

// A kernel without flowtables, and configurations that cannot work, are refused before anything is changed.
func TestFastPathRefused(t *testing.T) {
	reset(t)
	n := node.New(t)
	c := n.Bridge("cni0", "10.1.0.1/24").Container("c1", "10.1.0.5/24")
	a := of(c)
	if nettest.Flowtables().Probe() != nil {
		for _, verb := range []spec.Verb{spec.Add, spec.Status} {
			if err := a.call(t, verb, fast); spec.ErrorCode(err) != spec.CodeNotAvailable || !strings.Contains(err.Error(), "no flowtables") {
				t.Errorf("%s: %v", verb, err)
			}
		}
		nothingLeft(t, "")
	}
	single := *a
	prev := *a.prev
	single.prev, prev.Interfaces = &prev, prev.Interfaces[1:]
	if err := single.call(t, spec.Add, fast); err == nil || !strings.Contains(err.Error(), "needs a bridge") {
		t.Errorf("ptp: %v", err)
	}
	records := record.New("/run/patchbay")
	fact := record.Fact{Name: record.InternalFact("cni0")}
	if err := records.Hold(t.Context(), fact, "abcdefghijklmno", nil); err != nil {
		t.Fatal(err)
	}
	if err := a.call(t, spec.Add, fast); err == nil || !strings.Contains(err.Error(), "internal network") {
		t.Errorf("internal: %v", err)
	}
	if err := records.Release(t.Context(), fact.Name, "abcdefghijklmno", func(record.Fact) error { return nil }); err != nil {
		t.Fatal(err)
	}
	policed := record.Record{Network: "net", Owner: owner.Of("net", a.id, "eth0"), Plugin: "policy", ContainerID: a.id, IfName: "eth0"}
	if err := records.Write(&policed); err != nil {
		t.Fatal(err)
	}
	if err := a.call(t, spec.Add, fast); err == nil || !strings.Contains(err.Error(), "exclude each other") {
		t.Errorf("with policy: %v", err)
	}
	if err := records.Remove(policed.Network, policed.Owner, policed.Plugin); err != nil {
		t.Fatal(err)
	}
	pod := record.Record{Network: "pods", Owner: owner.Of("pods", "p", "eth0"), ContainerID: "p", IfName: "eth0"}
	for addr, bridge := range map[string]string{"10.1.0.9": "another's", "10.2.0.9": "cni0"} { // in the subnet; on the bridge
		policed, made := pod, pod
		policed.Plugin, policed.Policed = "policy", &record.Policed{Addrs: []netip.Addr{netip.MustParseAddr(addr)}}
		made.Plugin, made.Bridge = "bridge", bridge
		if err := errors.Join(records.Write(&policed), records.Write(&made)); err != nil {
			t.Fatal(err)
		}
		if err := a.call(t, spec.Add, fast); err == nil || !strings.Contains(err.Error(), "container p of network pods has network policies") {
			t.Errorf("with a pod of another network, %s on %s, that has policies: %v", addr, bridge, err)
		}
		if err := errors.Join(records.Remove(pod.Network, pod.Owner, "policy"), records.Remove(pod.Network, pod.Owner, "bridge")); err != nil {
			t.Fatal(err)
		}
	}
	nothingLeft(t, "")
}
