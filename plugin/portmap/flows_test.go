// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/conntrack"
	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/spec"
)

const dns = `{"hostPort": 53, "containerPort": 80, "protocol": "udp"}`

// flows lists the UDP flows of the node to a port.
func flows(t *testing.T, port uint16) (out []string) {
	t.Helper()
	c, err := conntrack.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // a test
	for _, v6 := range []bool{false, true} {
		list, err := c.List(conntrack.Filter{IPv6: v6, Protocol: unix.IPPROTO_UDP, OrigDstPort: port})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range list {
			out = append(out, f.String())
		}
	}
	return out
}

// A client keeps sending from one port. Its packets must follow the mapping: from the host to the
// container on ADD, to the next container after DEL.
func TestUDPFollows(t *testing.T) {
	for _, tc := range []struct{ name, from, to string }{
		{"IPv4", node.Client4, node.Uplink4},
		{"IPv6", node.Client6, node.Uplink6},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n, web, other := world(t)
			from := netip.AddrPortFrom(netip.MustParseAddr(tc.from), 4444).String()
			to := netip.AddrPortFrom(netip.MustParseAddr(tc.to), 53).String()
			ask := func(about, want string) {
				t.Helper()
				if got := n.Client.AskFrom("udp", from, to); got != want {
					t.Errorf("%s: heard %q, want %q", about, got, want)
				}
			}
			a, b := of(web), of(other)
			b.must(t, spec.Add, ports(`{"hostPort": 54, "containerPort": 80, "protocol": "udp"}`)) // connection tracking starts with the table
			ask("nobody is there", "refused")
			a.must(t, spec.Add, ports(dns))
			ask("after ADD", "web "+tc.from)
			a.must(t, spec.Add, ports(dns))
			ask("after ADD again", "web "+tc.from)
			a.del(t)
			b.must(t, spec.Del, `{}`)
			b.must(t, spec.Add, ports(dns))
			ask("another container", "other "+tc.from)
			b.del(t)
			nothingLeft(t)
		})
	}
}

// Only flows that go astray are deleted. Flows to port 53 elsewhere remain: those through the
// host, and those by a mapping for one address.
func TestUDPExactly(t *testing.T) {
	n, web, other := world(t)
	n.Client.Serve("udp", ":53")
	a, b := of(web), of(other)
	b.must(t, spec.Add, ports(`{"hostPort": 53, "containerPort": 80, "protocol": "udp", "hostIP": "127.0.0.5"}`))
	stay := []string{
		web.Ask("udp", node.Client4+":53"),
		n.Host.Ask("udp", node.Client4+":53"),
		n.Host.Ask("udp", "127.0.0.5:53"),
	}
	if stay[0] != "client 10.1.0.5" || stay[1] != "client 192.0.2.1" || stay[2] != "other 10.1.0.1" {
		t.Fatalf("flows to stay: %q", stay)
	}
	n.Client.Ask("udp", node.Uplink4+":53")
	if got := flows(t, 53); len(got) != 4 {
		t.Fatalf("flows %q, want 4", got)
	}
	a.must(t, spec.Add, ports(dns))
	if got := flows(t, 53); len(got) != 3 {
		t.Errorf("after ADD %q, want the three of others", got)
	}
	expect(t, "published", n.Client, "udp", node.Uplink4+":53", "web "+node.Client4)
	a.del(t)
	if got := flows(t, 53); len(got) != 3 {
		t.Errorf("after DEL %q, want the three of others", got)
	}
	b.del(t)
	if got := flows(t, 53); len(got) != 2 {
		t.Errorf("after the other's DEL %q, want the two through the host", got)
	}
}

// An ADD that is refused because another container has its port deletes none of the other's flows.
func TestUDPRefused(t *testing.T) {
	n, web, other := world(t)
	a, b := of(web), of(other)
	a.must(t, spec.Add, ports(dns))
	t.Cleanup(func() { a.del(t) })
	expect(t, "published", n.Client, "udp", node.Uplink4+":53", "web "+node.Client4)
	before := flows(t, 53)
	if err := b.call(t, spec.Add, ports(dns)); err == nil || len(before) == 0 {
		t.Fatalf("flows %q, %v", before, err)
	}
	if got := flows(t, 53); !slices.Equal(got, before) {
		t.Errorf("after the refused ADD %q, want %q", got, before)
	}
}

func TestUDPMappings(t *testing.T) {
	to := netip.MustParseAddr("10.1.0.5")
	p := plan{comment: "x", snat: true, addrs: []netip.Prefix{netip.PrefixFrom(to, 24)}, mappings: []mapping{
		{hostPort: 53, containerPort: 5353, protocol: unix.IPPROTO_UDP},
		{hostPort: 54, containerPort: 54, protocol: unix.IPPROTO_UDP, host: netip.MustParseAddr("192.0.2.1")},
		{hostPort: 80, containerPort: 80, protocol: unix.IPPROTO_TCP},
	}}
	got := udpMappings(p.record().Elements)
	want := []udpMapping{
		{port: 53, to: netip.AddrPortFrom(to, 5353)},
		{host: netip.MustParseAddr("192.0.2.1"), port: 54, to: netip.AddrPortFrom(to, 54)},
	}
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("%v, want %v", got, want)
	}
}
