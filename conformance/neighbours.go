// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

// hostPort returns the first TCP port of the host that the configuration publishes, or 0.
func (s *Subject) hostPort() int {
	var conf struct {
		PortMappings []struct {
			HostPort int    `json:"hostPort"`
			Protocol string `json:"protocol"`
		} `json:"portMappings"`
	}
	_ = json.Unmarshal(s.Conf["runtimeConfig"], &conf) // a plugin without ports may have another runtimeConfig
	for _, m := range conf.PortMappings {
		if strings.EqualFold(m.Protocol, "tcp") {
			return m.HostPort
		}
	}
	return 0
}

// These are a client and a server on two networks that only the host connects (RFC 5737).
const (
	clientHost, clientAddr = "198.51.100.1", "198.51.100.2"
	serverHost, serverAddr = "203.0.113.1", "203.0.113.2"
)

// neighbours are the namespaces of the client and the server.
type neighbours struct {
	client string // path
	server net.Listener
	port   int
}

// cmdNeighbours makes a client and a server that reach each other through the host. The server listens on the port
// of its own address that the plugin publishes on the host's.
func cmdNeighbours(ts *testscript.TestScript, neg bool, args []string) {
	w := theWorld(ts)
	client, err := w.neighbour("pb-client", clientHost, clientAddr)
	ts.Check(err)
	server, err := w.neighbour("pb-server", serverHost, serverAddr)
	ts.Check(err)
	w.diary.did("sysctl -qw net.ipv4.ip_forward=1")
	ts.Check(os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0))
	n := &neighbours{client: client, port: w.suite.Subject.hostPort()}
	ts.Check(inside(server, func() (err error) {
		n.server, err = net.Listen("tcp", net.JoinHostPort(serverAddr, strconv.Itoa(n.port)))
		return err
	}))
	w.t.Cleanup(func() { _ = n.server.Close() }) // it was only listening
	go n.serve()
	w.neighbours = n
	ts.Check(w.begin())
}

// neighbour makes a namespace with a link to the host, and returns its path.
func (w *World) neighbour(name, host, addr string) (string, error) {
	path := nettest.NewNS(w.t, name+w.places["first"].ContainerID[:8])
	ns, err := vnetns.GetFromPath(path)
	if err != nil {
		return "", err
	}
	defer ns.Close() //nolint:errcheck // read only
	w.diary.did("ip netns add %s; ip link add %s type veth peer name eth0 netns %s; ip address add %s/24 dev %s; ip link set %s up", name, name, name, host, name, name)
	w.diary.did("ip -n %s address add %s/24 dev eth0; ip -n %s link set eth0 up; ip -n %s route add default via %s", name, addr, name, name, host)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	link := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(ns)}
	if err := netlink.LinkAdd(link); err != nil {
		return "", fmt.Errorf("make %s: %w", name, err)
	}
	w.t.Cleanup(func() { _ = netlink.LinkDel(link) }) // fails if the namespace was deleted before
	if err := addressed(name, host); err != nil {
		return "", err
	}
	return path, inside(path, func() error {
		err := addressed("eth0", addr)
		return errors.Join(err, netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(host)}))
	})
}

// addressed gives a link an address and sets it up.
func addressed(name, addr string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	a := &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(addr), Mask: net.CIDRMask(24, 32)}}
	return errors.Join(netlink.AddrAdd(link, a), netlink.LinkSetUp(link))
}

// greeting is what the server says.
const greeting = "the server"

func (n *neighbours) serve() {
	for {
		conn, err := n.server.Accept()
		if err != nil {
			return // closed
		}
		_, _ = io.WriteString(conn, greeting)
		_ = conn.Close()
	}
}

// cmdReach checks that the client reaches the server.
func cmdReach(ts *testscript.TestScript, neg bool, args []string) {
	w := theWorld(ts)
	n := w.neighbours
	if n == nil {
		ts.Fatalf("reach needs the command neighbours before it")
	}
	to := net.JoinHostPort(serverAddr, strconv.Itoa(n.port))
	w.diary.did("ip netns exec pb-client nc %s %d # the server listens there: ip netns exec pb-server nc -l -p %d", serverAddr, n.port, n.port)
	var said []byte
	err := inside(n.client, func() error {
		conn, err := net.DialTimeout("tcp", to, 3*time.Second) // a first SYN may be lost while a link comes up
		if err != nil {
			return err
		}
		defer conn.Close() //nolint:errcheck // read only
		_ = conn.SetDeadline(time.Now().Add(3 * time.Second))
		said, err = io.ReadAll(conn)
		return err
	})
	if err != nil || string(said) != greeting {
		ts.Fatalf("a client of another network does not reach %s through the host any more: %v", to, err)
	}
}
