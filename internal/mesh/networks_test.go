// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
)

// networks are the networks 10.40.0.0/16 and fd40::/16, 10.41.0.0/16 and fd41::/16, and so on. Every host has
// a block of each network, and a bridge for each network that it has joined, like the hosts of `patchbayd hosts`.
type networks struct {
	*testing.T
	setup
	hosts    []*host
	isolated map[int]bool
}

func newNetworks(t *testing.T, transport Transport) *networks {
	l := newLab(t)
	n := &networks{t, setup{transport, "46"}, l.hosts[:2], map[int]bool{}}
	for _, h := range n.hosts {
		h.sh("sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 net.ipv4.conf.cni0.rp_filter=0 net.ipv4.conf.eth0.rp_filter=0")
		h.masqueraded(fmt.Sprintf("10.40.%d.5/16", h.number), fmt.Sprintf("fd40:%d::5/16", h.number))
	}
	return n
}

// addrs are a host's addresses in a network, of both families.
func (n *networks) addrs(h *host, network, last int) []string {
	return []string{fmt.Sprintf("10.%d.%d.%d", 40+network, h.number, last), fmt.Sprintf("fd%d:%d::%d", 40+network, h.number, last)}
}

// join makes a host's bridge in a network, and a container there.
func (n *networks) join(h *host, network int) *space {
	bridge, gateway, own := n.bridge(network), n.addrs(h, network, 1), n.addrs(h, network, 5)
	h.bridge(bridge)
	h.addr(bridge, gateway[0]+"/24", gateway[1]+"/64")
	return n.container(h, bridge, gateway, own[0]+"/24", own[1]+"/64")
}

func (n *networks) container(h *host, bridge string, gateway []string, addrs ...string) *space {
	c := newSpace(n, fmt.Sprintf("c-%s-%d", bridge, h.number))
	join(h.space, "v"+bridge, bridge, c, "eth0")
	c.addr("eth0", addrs...)
	c.route("0.0.0.0/0", gateway[0])
	c.route("::/0", gateway[1])
	return c
}

func (n *networks) bridge(network int) string {
	if network == 0 {
		return "cni0"
	}
	return fmt.Sprint("net", network)
}

// apply runs the agents, with networks 0 to 3.
func (n *networks) apply() {
	n.Helper()
	for _, h := range n.hosts {
		self := n.self(h)
		self.Subnets, self.Blocks = nil, n.blocks(h)
		for i := range 4 {
			for _, p := range []struct {
				text string
				bits int
			}{{fmt.Sprintf("10.%d.0.0/16", 40+i), 24}, {fmt.Sprintf("fd%d::/16", 40+i), 64}} {
				self.Subnets = append(self.Subnets, Subnet{
					Network: fmt.Sprint("net", i), Prefix: netip.MustParsePrefix(p.text),
					Isolated: n.isolated[i], Block: p.bits, Bridge: n.bridge(i),
				})
			}
		}
		peers := n.peers(h, n.hosts...)
		for i := range peers {
			for _, p := range n.hosts {
				if p.id() == peers[i].ID {
					peers[i].Blocks = n.blocks(p)
				}
			}
		}
		h.do(func() error { return h.mesh.Apply(ctx, self, peers) })
	}
}

func (n *networks) blocks(h *host) (list []netip.Prefix) {
	for i := range 4 {
		list = append(list, netip.MustParsePrefix(fmt.Sprintf("10.%d.%d.0/24", 40+i, h.number)), netip.MustParsePrefix(fmt.Sprintf("fd%d:%d::/64", 40+i, h.number)))
	}
	return list
}

// reaches checks whether a connection to each address of a container is possible.
func (n *networks) reaches(what string, from, to *space, addrs []string, want bool) {
	n.Helper()
	for _, addr := range addrs {
		listener := to.listen(n, net.JoinHostPort(addr, "0"))
		within := patience
		if !want {
			within = 300 * time.Millisecond
		}
		c, err := from.dial(listener.Addr().String(), within)
		if err == nil {
			c.Close() //nolint:errcheck // a test
		}
		if (err == nil) != want {
			n.Errorf("%s: to %s: %v", what, addr, err)
		}
	}
}

// overHosts runs a test with direct routes and with tunnels.
func overHosts(t *testing.T, test func(*networks)) {
	for _, transport := range []Transport{Routes, VXLAN} {
		t.Run(string(transport), func(t *testing.T) { test(newNetworks(t, transport)) })
	}
}

// Network 1 is internal on host 2, and host 1 has a bridge of it. Packets that host 1 masquerades with the
// bridge's address do not enter the network, nor do packets of host 1's own processes. Its ICMP errors do.
func TestInternalOverHosts(t *testing.T) {
	overHosts(t, func(n *networks) {
		a, b := n.hosts[0], n.hosts[1]
		inner1, inner2 := n.join(a, 1), n.join(b, 1)
		n.apply()
		n.reaches("before", a.container, inner2, n.addrs(b, 1, 5), true)
		for _, h := range []*host{b, a} {
			n.close(h, 1)
			n.reaches("a container of another network", a.container, inner2, n.addrs(b, 1, 5), false)
			n.reaches("a process of another host", a.space, inner2, n.addrs(b, 1, 5), false)
		}
		n.reaches("a process of its host", b.space, inner2, n.addrs(b, 1, 5), true)
		n.reaches("its network", inner1, inner2, n.addrs(b, 1, 5), true)
		n.reaches("its network", inner2, inner1, n.addrs(a, 1, 5), true)
		n.reaches("from it to another host", inner2, a.space, n.addrs(a, 1, 1), false)
		a.sh("ip route add unreachable 10.41.1.77; ip -6 route add unreachable fd41:1::77")
		for _, to := range n.addrs(a, 1, 77) {
			c, err := inner2.dial(net.JoinHostPort(to, "80"), patience)
			if !errors.Is(err, unix.EHOSTUNREACH) && !errors.Is(err, unix.ENETUNREACH) {
				t.Errorf("no error from host 1 about %s: %v, %v", to, c, err)
			}
		}
	})
}

// close makes a network internal on a host.
func (n *networks) close(h *host, network int) {
	n.Helper()
	elems := nft.Internal(n.bridge(network), "inner")
	for text, bits := range map[string]int{fmt.Sprintf("10.%d.0.0/16", 40+network): 24, fmt.Sprintf("fd%d::/16", 40+network): 64} {
		elems = append(elems, nft.Span(netip.MustParsePrefix(text), bits, "inner"))
	}
	h.do(func() error {
		fw := nft.Open(h.paths.Run)
		defer fw.Close() //nolint:errcheck // a test
		fw.Add(elems...)
		return fw.Commit(ctx)
	})
}

// Networks 2 and 3 are isolated. Host 1 has no bridge of network 2, so the host's own packets to network 2
// have the address of network 3's bridge. They pass all the same: only packets of network 3's containers are
// dropped.
func TestOpenToIsolated(t *testing.T) {
	overHosts(t, func(n *networks) {
		a, b := n.hosts[0], n.hosts[1]
		third, second := n.join(a, 3), n.join(b, 2)
		n.isolated[2], n.isolated[3] = true, true
		n.apply()
		n.reaches("an open network", a.container, second, n.addrs(b, 2, 5), true)
		n.reaches("a process of the host", a.space, second, n.addrs(b, 2, 5), true)
		n.reaches("an isolated network", third, second, n.addrs(b, 2, 5), false)
		n.reaches("an isolated network", second, third, n.addrs(a, 3, 5), false)
		n.reaches("from an isolated network to an open one", second, a.container, n.addrs(a, 0, 5), true)
	})
}

// A container with NET_RAW sends to a network of another host. Packets with foreign source addresses do not
// arrive. Packets from the container's own address arrive, and so do packets from addresses that its host
// reaches through the container.
func TestForgedByContainer(t *testing.T) {
	overHosts(t, func(n *networks) {
		a, b := n.hosts[0], n.hosts[1]
		third, second := n.join(a, 3), n.join(b, 2)
		a.bridge("docker0")
		a.addr("docker0", "172.17.0.1/16", "fd17::1/64")
		stranger := n.container(a, "docker0", []string{"172.17.0.1", "fd17::1"}, "172.17.0.5/16", "fd17::5/64")
		n.isolated[2], n.isolated[3] = true, true
		n.apply()
		a.sh("ip route add 172.31.0.0/24 via 10.40.1.5; ip -6 route add fd31::/64 via fd40:1::5")
		heard := second.hears(t)
		for _, c := range []struct {
			what   string
			from   *space
			as     []string
			passes bool
		}{
			{"an open network", a.container, []string{"", ""}, true},
			{"a network behind a container", a.container, []string{"172.31.0.9", "fd31::9"}, true},
			{"a network that nobody knows", stranger, []string{"172.17.0.9", "fd17::9"}, true},
			{"an open network as an isolated one", a.container, n.addrs(a, 3, 5), false},
			{"an open network as its host", a.container, n.addrs(a, 3, 1), false},
			{"an isolated network", third, []string{"", ""}, false},
			{"an isolated network as an open one", third, n.addrs(a, 0, 5), false},
			{"an isolated network as nobody", third, []string{"203.0.113.7", "2001:db8:77::7"}, false},
			{"an isolated network as its host", third, n.addrs(a, 3, 1), false},
			{"an isolated network as its host's open network", third, n.addrs(a, 0, 1), false},
			{"another bridge as the receiver's network", stranger, n.addrs(a, 2, 5), false},
		} {
			for i, to := range n.addrs(b, 2, 5) {
				text := fmt.Sprintf("%s from %q to %s", c.what, c.as[i], to)
				c.from.throws(t, c.as[i], to, forgedPort, []byte(text))
				if got := heard(text); got != c.passes {
					t.Errorf("%s: passes: %v", text, got)
				}
			}
		}
	})
}

// The check of sources does not change without need, is restored after damage, and is removed with the mesh.
func TestLinksGuarded(t *testing.T) {
	n := newNetworks(t, Routes)
	a := n.hosts[0]
	n.apply()
	before := a.rules(t)
	if n.apply(); a.rules(t) != before || !strings.Contains(before, "chain links_hosts_from") {
		t.Errorf("a second Sync changed\n%s\nto\n%s", before, a.rules(t))
	}
	a.do(func() error {
		fw := nft.Open(a.paths.Run)
		defer fw.Close() //nolint:errcheck // a test
		diffs, err := fw.Verify()
		if len(diffs) > 0 {
			t.Errorf("%q", diffs)
		}
		return err
	})
	a.sh("nft flush chain inet patchbay links_hosts_to; nft flush chain inet patchbay links_hosts_from")
	if n.apply(); a.rules(t) != before {
		t.Errorf("after damage\n%s\nwas\n%s", a.rules(t), before)
	}
	a.do(func() error { return a.mesh.Clear(ctx, Self{}) })
	if r := a.rules(t); strings.Contains(r, "links_") {
		t.Errorf("Clear left\n%s", r)
	}
}
