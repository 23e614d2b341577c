// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"errors"
	"flag"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files")

// world returns a self, its peers and the kernel's facts, for the pure tests.
func world() (Self, []Peer, Observed) {
	addr, prefix := netip.MustParseAddr, netip.MustParsePrefix
	self := Self{
		ID: "node-1", Underlay: []netip.Addr{addr("192.0.2.1"), addr("2001:db8:1::1")},
		Subnets: []Subnet{
			{Network: "blue", Prefix: prefix("10.40.0.0/16")},
			{Network: "blue", Prefix: prefix("fd40::/16")},
			{Network: "plain", Prefix: prefix("10.50.0.0/16")},
		},
		Blocks: []netip.Prefix{prefix("10.40.1.0/24"), prefix("fd40:1::/64")},
	}
	near := Peer{
		ID: "node-2", Name: "near", Underlay: []netip.Addr{addr("192.0.2.2"), addr("2001:db8:1::2")},
		Blocks: []netip.Prefix{prefix("10.40.2.0/24"), prefix("fd40:2::/64"), prefix("10.40.77.0/24")},
	}
	far := Peer{
		ID: "node-4", Name: "far", Underlay: []netip.Addr{addr("198.51.100.4")}, Port: 8472,
		Blocks: []netip.Prefix{prefix("10.40.4.0/24"), prefix("fd40:4::/64")},
	}
	six := Peer{
		ID: "node-6", Name: "six", Underlay: []netip.Addr{addr("2001:db8:2::6")}, Transport: Auto,
		VTEP: net.HardwareAddr{2, 0, 0, 0, 0, 6}, Blocks: []netip.Prefix{prefix("10.40.6.0/24")},
	}
	facts := Observed{MTU: 1500, Reach: map[netip.Addr]Reach{
		addr("192.0.2.2"): {"eth0", true}, addr("2001:db8:1::2"): {"eth0", true},
		addr("198.51.100.4"): {"eth0", false}, addr("2001:db8:2::6"): {"eth0", false},
	}}
	return self, []Peer{six, far, near}, facts
}

func TestCompile(t *testing.T) {
	for name, change := range map[string]func(*Self, []Peer, *Observed){
		"auto": func(*Self, []Peer, *Observed) {},
		"vxlan": func(_ *Self, peers []Peer, _ *Observed) {
			for i := range peers {
				peers[i].Transport = VXLAN
			}
		},
		"two-transports": func(_ *Self, peers []Peer, _ *Observed) { // one peer's, for two networks
			peers[1] = peers[2]
			peers[1].Blocks, peers[1].Transport = []netip.Prefix{netip.MustParsePrefix("10.50.2.0/24")}, VXLAN
		},
		"ipv4-blocks-by-ipv6": func(self *Self, peers []Peer, _ *Observed) {
			self.Underlay = self.Underlay[1:]
			peers[2].Underlay = peers[2].Underlay[1:]
			peers[1] = peers[2]
			peers[1].ID, peers[1].Blocks = "none", nil
			peers[1].Underlay = []netip.Addr{netip.MustParseAddr("2001:db8:1::9")}
		},
		"no-ipv6": func(self *Self, peers []Peer, facts *Observed) {
			facts.NoIPv6 = true
			self.Underlay, self.Subnets = self.Underlay[:1], self.Subnets[:1]
			for i := range peers {
				peers[i].Underlay, peers[i].Transport, peers[i].VTEP = []netip.Addr{netip.MustParseAddr("192.0.2.4")}, VXLAN, nil
				peers[i].Blocks = peers[i].Blocks[:1]
			}
		},
		"options": func(self *Self, _ []Peer, _ *Observed) {
			self.Name, self.Device, self.VNI, self.Protocol, self.Port, self.MTU = "k8s", "kube-vx", 9, 113, 8472, 1380
		},
		"exempt": func(self *Self, peers []Peer, _ *Observed) {
			for _, p := range []string{"10.40.0.0/16", "192.168.7.9/24", "fd00::/8"} {
				self.Exempt = append(self.Exempt, netip.MustParsePrefix(p))
			}
			self.Blocks = append(self.Blocks, netip.MustParsePrefix("10.40.9.0/24"))
			self.AnyPort = true
		},
		"wireguard": func(_ *Self, peers []Peer, facts *Observed) {
			facts.Key = Key{1}
			for i := range peers {
				peers[i].Transport, peers[i].Key = WireGuard, Key{2, byte(i)}
			}
			peers[1].WirePort = 1234
			peers[2].Transport = Routes // a network of its own without encryption
			peers[2].Blocks = []netip.Prefix{netip.MustParsePrefix("10.50.2.0/24")}
		},
		"alone": func(_ *Self, peers []Peer, _ *Observed) {
			for i := range peers {
				peers[i].Blocks = nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			self, peers, facts := world()
			change(&self, peers, &facts)
			s, err := Compile(self, peers, facts)
			must(t, err)
			golden(t, name, s.String())
		})
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".txt")
	if *update {
		must(t, os.WriteFile(path, []byte(got), 0o644)) //nolint:gosec // a golden file
	}
	want, err := os.ReadFile(path)
	must(t, err)
	if got != string(want) {
		t.Errorf("%s: got\n%swant\n%s", path, got, want)
	}
}

// A wrong entry of one peer is left out and reported. All other peers work.
func TestCompileRefuses(t *testing.T) {
	addr, prefix := netip.MustParseAddr, netip.MustParsePrefix
	for _, tc := range []struct {
		name   string
		change func(*Self, []Peer, *Observed)
		want   string
	}{
		{"outside", func(_ *Self, p []Peer, _ *Observed) { p[2].Blocks[0] = prefix("0.0.0.0/0") },
			"peer near (node-2): block 0.0.0.0/0 lies in none of the networks"},
		{"wider", func(_ *Self, p []Peer, _ *Observed) { p[2].Blocks[0] = prefix("10.0.0.0/8") }, "lies in none of the networks"},
		{"nothing", func(_ *Self, p []Peer, _ *Observed) { p[2].Blocks[0] = netip.Prefix{} }, "lies in none of the networks"},
		{"ours", func(_ *Self, p []Peer, _ *Observed) { p[2].Blocks[0] = prefix("10.40.1.128/25") },
			"block 10.40.1.128/25 overlaps 10.40.1.0/24 of this host"},
		{"twice", func(_ *Self, p []Peer, _ *Observed) { p[1].Blocks[0] = prefix("10.40.2.0/24") },
			"peer far (node-4): block 10.40.2.0/24 overlaps 10.40.2.0/24 of peer node-2"},
		{"transport", func(_ *Self, p []Peer, _ *Observed) { p[2].Transport = "ipsec" }, `unknown transport "ipsec"`},
		{"no underlay", func(_ *Self, p []Peer, _ *Observed) { p[2].Underlay = nil }, "no underlay address"},
		{"within", func(_ *Self, p []Peer, _ *Observed) { p[2].Underlay[0] = addr("10.40.9.9") },
			"underlay address 10.40.9.9 lies within 10.40.0.0/16 of network blue"},
		{"multicast", func(_ *Self, p []Peer, _ *Observed) { p[2].Underlay[0] = addr("224.0.0.1") }, "is not an address of one host"},
		{"our address", func(_ *Self, p []Peer, _ *Observed) { p[2].Underlay[0] = addr("192.0.2.1") }, "is this host's own"},
		{"our VTEP", func(_ *Self, p []Peer, _ *Observed) { p[2].VTEP = VTEP("node-1") }, "do two hosts have one id?"},
		{"one VTEP", func(_ *Self, p []Peer, _ *Observed) { p[1].VTEP = VTEP("node-2") }, "is that of peer node-2"},
		{"no MAC", func(_ *Self, p []Peer, _ *Observed) { p[2].VTEP = net.HardwareAddr{1, 2, 3} }, "is not an Ethernet address of one host"},
		{"far routes", func(_ *Self, p []Peer, _ *Observed) { p[1].Transport = Routes }, "wants all hosts on one link"},
		{"our network", func(s *Self, _ []Peer, _ *Observed) {
			s.Subnets = append(s.Subnets, Subnet{Network: "huge", Prefix: prefix("192.0.0.0/8")})
		}, "network huge is left out: underlay address 192.0.2.1 lies within 192.0.0.0/8 of network huge"},
		{"everything", func(s *Self, _ []Peer, _ *Observed) {
			s.Subnets = append(s.Subnets, Subnet{Network: "all", Prefix: prefix("0.0.0.0/0")}, Subnet{Network: "all", Prefix: prefix("::/0")})
		}, "network all is left out: 0.0.0.0/0 cannot be a subnet for containers: it overlaps 0.0.0.0/8"},
		{"metadata", func(s *Self, p []Peer, _ *Observed) {
			s.Subnets = append(s.Subnets, Subnet{Network: "cloud", Prefix: prefix("169.254.0.0/16")})
			p[2].Blocks = append(p[2].Blocks, prefix("169.254.169.0/24"))
		}, "block 169.254.169.0/24 lies in none of the networks"},
		{"loopback", func(s *Self, _ []Peer, _ *Observed) {
			s.Subnets = append(s.Subnets, Subnet{Network: "lo", Prefix: prefix("::/64")})
		}, "network lo is left out"},
		{"MTU", func(_ *Self, _ []Peer, f *Observed) { f.MTU = 1300 },
			"no route to fd40:4::/64: packets in the tunnel have 1250 bytes at most, and IPv6 needs 1280: raise the MTU of the uplink, which is 1300, to 1330"},
		{"tiny MTU", func(_ *Self, _ []Peer, f *Observed) { f.MTU = 100 }, "no tunnel: an MTU of 50 is below 68"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			self, peers, facts := world()
			tc.change(&self, peers, &facts)
			s, err := Compile(self, peers, facts)
			if err == nil || !strings.Contains(err.Error(), tc.want) || errors.Is(err, ErrSelf) {
				t.Errorf("%v", err)
			}
			for _, r := range s.Routes {
				if r.Dst.Bits() < 16 {
					t.Errorf("a route was made: %s", r)
				}
			}
			if len(s.Routes) < 2 {
				t.Errorf("only these routes are left:\n%s", s)
			}
		})
	}
}

func TestCompileRefusesSelf(t *testing.T) {
	addr, prefix := netip.MustParseAddr, netip.MustParsePrefix
	for want, change := range map[string]func(*Self){
		"no underlay address":        func(s *Self) { s.Underlay = nil },
		"at most one of each family": func(s *Self) { s.Underlay[1] = addr("192.0.2.9") },
		"overlaps 10.40.0.0/16":      func(s *Self) { s.Subnets[2].Prefix = prefix("10.40.128.0/17") },
		`device "0123456789abcde"`:   func(s *Self) { s.Device = "0123456789abcde" },
		`name "../../etc"`:           func(s *Self) { s.Name = "../../etc" },
		"has more than 24 bits":      func(s *Self) { s.VNI = 1 << 24 },
		"route protocol 2 is":        func(s *Self) { s.Protocol = 2 },
		"is not an Ethernet address": func(s *Self) { s.VTEP = net.HardwareAddr{1, 0, 0, 0, 0, 1} },
	} {
		self, peers, facts := world()
		change(&self)
		s, err := Compile(self, peers, facts)
		if !errors.Is(err, ErrSelf) || !strings.Contains(err.Error(), want) || len(s.Routes) > 0 {
			t.Errorf("want %q: %v", want, err)
		}
	}
}

// The test compares claims of any prefix length with each other.
func TestClaims(t *testing.T) {
	var c routed
	c.add(netip.MustParsePrefix("10.40.2.0/24"), "a")
	c.add(netip.MustParsePrefix("10.40.4.0/22"), "b")
	for block, free := range map[string]bool{
		"10.40.2.0/24": false, "10.40.2.128/25": false, "10.40.2.0/23": false, "10.40.0.0/16": false, "10.40.7.0/24": false,
		"10.40.3.0/24": true, "10.40.8.0/22": true, "fd40::/64": true,
	} {
		if err := c.overlap(netip.MustParsePrefix(block)); (err == nil) != free {
			t.Errorf("%s: %v", block, err)
		}
	}
}

// BenchmarkCompile compiles 500 hosts on ten networks.
func BenchmarkCompile(b *testing.B) {
	self, _, facts := world()
	self.Subnets, self.Blocks = []Subnet{{Network: "ten", Prefix: netip.MustParsePrefix("10.0.0.0/8")}}, nil
	var peers []Peer
	for n := range 500 {
		at := netip.AddrFrom4([4]byte{198, 51, byte(n / 250), byte(1 + n%250)})
		facts.Reach[at] = Reach{"eth0", true}
		for network := range 10 {
			block := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(network*2 + n/250), byte(n % 250), 0}), 24)
			peers = append(peers, Peer{ID: at.String(), Underlay: []netip.Addr{at}, Blocks: []netip.Prefix{block}})
		}
	}
	for b.Loop() {
		if s, err := Compile(self, peers, facts); err != nil || len(s.Routes) != len(peers) {
			b.Fatal(len(s.Routes), err)
		}
	}
}

func TestAddresses(t *testing.T) {
	mac := VTEP("node-1")
	if mac[0] != 2 || mac.String() != VTEP("node-1").String() || mac.String() == VTEP("node-2").String() {
		t.Errorf("VTEP %s", mac)
	}
	if hop := NextHop(net.HardwareAddr{2, 0x11, 0x22, 0x33, 0x44, 0x55}); hop.String() != "fe80::11:22ff:fe33:4455" {
		t.Errorf("next hop %s", hop)
	}
	four, six := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	v4, v6 := netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd01::/64")
	for _, tc := range []struct {
		uplink int
		t      Transport
		addrs  []netip.Addr
		blocks []netip.Prefix
		want   int
	}{
		{1500, Routes, []netip.Addr{four}, nil, 1500}, {1500, VXLAN, []netip.Addr{four}, nil, 1450}, {1500, Auto, []netip.Addr{four, six}, nil, 1430},
		{1280, Auto, []netip.Addr{four}, []netip.Prefix{v4}, 1230}, {1280, Auto, []netip.Addr{four}, []netip.Prefix{v4, v6}, 1280},
		{1200, Routes, []netip.Addr{four}, []netip.Prefix{v6}, 1280}, {1400, WireGuard, []netip.Addr{six}, []netip.Prefix{v6}, 1320},
	} {
		if got := ContainerMTU(tc.uplink, tc.t, tc.addrs, tc.blocks); got != tc.want {
			t.Errorf("%v: MTU %d, want %d", tc, got, tc.want)
		}
	}
}
