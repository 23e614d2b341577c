// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/spec"
)

// layer3 has addresses and no gateway, like the networks of network create --internal.
const layer3 = `"bridge": "tbr0", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.9.0.0/24"}], [{"subnet": "fd09::/64"}]]}`

const internal = dual + `, "ipMasq": true, "internal": true`

// An internal network meets every kind of neighbour. Nothing is forwarded in or out, whatever
// routes a container has. Its containers and the host reach each other.
func TestInternal(t *testing.T) {
	w := newWorld(t)
	w.BridgeNetfilter(true)                                      // frames between its own containers must still pass
	const other = `"bridge": "tbr1", "isDefaultGateway": true, ` // of ours
	a, b := w.Pod("a", internal).Add(), w.Pod("b", internal).Add()
	ours := w.Pod("ours", other+endpointtest.Static("10.8.0.5/24", "fd08::5/64")).Add()
	plain := w.Bridge("plain0", "10.7.0.1/24", "fd07::1/64").Container("plain", "10.7.0.5/24", "fd07::5/64")
	for n, c := range []struct{ ours, plain, client string }{{"10.8.0.5", "10.7.0.5", node.Client4}, {"fd08::5", "fd07::5", node.Client6}} {
		to := func(a string) string { return endpointtest.Join(a, "80") }
		a.Serve("tcp", to(a.IP(n)))
		for _, s := range []struct {
			*node.Space
			at string
		}{{ours.Space, c.ours}, {plain.Space, c.plain}, {w.Client, c.client}} {
			s.Serve("tcp", to(s.at))
			s.Expect("into the internal network", "tcp", to(a.IP(n)), "timeout")
			a.Expect("out of the internal network", "tcp", to(s.at), "timeout")
		}
		b.Expect("from its own network", "tcp", to(a.IP(n)), "a "+b.IP(n))
		w.Host.Expect("from the host", "tcp", to(a.IP(n)), "a "+a.Gateway(n))
	}
	for _, p := range []*endpointtest.Pod{a, b, ours} {
		endpointtest.Must(t, p.Do(spec.Check))
	}
	w.Want("masquerade", strings.Join(elementsOf(t, a.IP(0)), "; "), "")
}

// A part of an internal network is on another host. Its containers reach each other, and nobody else.
// A container of another network cannot send there with an address of the network.
func TestInternalSpan(t *testing.T) {
	w := newWorld(t)
	const span = `, "span": ["10.9.0.0/16", "fd09::/32"]`
	a := w.Pod("a", internal+span).Add()
	other := w.Pod("other", `"bridge": "tbr1", "isDefaultGateway": true, `+endpointtest.Static("10.8.0.5/24", "fd08::5/64")).Add()
	far, farHost := []string{"10.9.7.5", "fd09:0:7::5"}, []string{"10.9.7.1", "fd09:0:7::1"}
	w.Client.Address("lo", far[0]+"/32", far[1]+"/128", farHost[0]+"/32", farHost[1]+"/128")
	for n, c := range []struct{ client, net, spoofed string }{
		{node.Client4, "10.9.7.0/24", "10.9.7.6"}, {node.Client6, "fd09:0:7::/64", "fd09:0:7::6"},
	} {
		w.Router.Route(c.net, c.client)
		to := func(a string) string { return endpointtest.Join(a, "80") }
		a.Serve("tcp", to(a.IP(n)))
		w.Client.Serve("tcp", to(far[n]))
		w.Client.Serve("tcp", to(c.client))
		a.Expect("to the part on another host", "tcp", to(far[n]), "client "+a.IP(n))
		w.Want("from there", w.Client.AskFrom("tcp", endpointtest.Join(far[n], "0"), to(a.IP(n))), "a "+far[n])
		w.Want("from the other host itself", w.Client.AskFrom("tcp", endpointtest.Join(farHost[n], "0"), to(a.IP(n))), "timeout")
		w.Client.Expect("into the internal network", "tcp", to(a.IP(n)), "timeout")
		a.Expect("out of the internal network", "tcp", to(c.client), "timeout")
		got := listen(t, a.Space, endpointtest.Join(a.IP(n), "9"))
		forge(t, other, netip.MustParseAddr(c.spoofed), netip.MustParseAddr(a.IP(n)))
		w.Host.AskBriefly("udp", endpointtest.Join(a.IP(n), "9")) // the forged packet would have arrived before
		w.Want("the first packet that arrives", <-got, "who?")
	}
	endpointtest.Must(t, a.Do(spec.Check))
}

// With only NET_RAW and without any route, a container can send the host a frame for another network.
func TestInternalFrames(t *testing.T) {
	for n, client := range []string{node.Client4, node.Client6} {
		for _, c := range []struct {
			name, conf, want string
		}{
			{"open", dual, "frame"}, {"internal", internal, "who?"},
			{"no gateway", layer3, "frame"}, {"internal, no gateway", layer3 + `, "internal": true`, "who?"},
		} {
			t.Run(c.name+" "+client, func(t *testing.T) {
				w := newWorld(t)
				a := w.Pod("a", c.conf).Add()
				got := listen(t, w.Client, endpointtest.Join(client, "9"))
				frame(t, a, n, netip.MustParseAddr(client))
				if c.want == "who?" { // the frame would have arrived before this request
					w.Host.AskBriefly("udp", endpointtest.Join(client, "9"))
				}
				w.Want("the client hears", <-got, c.want)
			})
		}
	}
}

// listen returns the first datagram that arrives.
func listen(t *testing.T, s *node.Space, at string) <-chan string {
	t.Helper()
	got := make(chan string, 1)
	endpointtest.Must(t, s.Do(func() error {
		conn, err := net.ListenPacket("udp", at)
		if err != nil {
			return err
		}
		t.Cleanup(func() { conn.Close() }) //nolint:errcheck // the end of the test
		go func() {
			buf := make([]byte, 64)
			n, _, err := conn.ReadFrom(buf)
			if err != nil {
				n = copy(buf, err.Error())
			}
			got <- string(buf[:n])
		}()
		return conn.SetDeadline(time.Now().Add(time.Minute))
	}))
	return got
}

// frame sends a UDP packet to the bridge's Ethernet address.
func frame(t *testing.T, p *endpointtest.Pod, n int, to netip.Addr) {
	t.Helper()
	forge(t, p, netip.MustParseAddr(p.IP(n)), to)
}

// forge does what frame does, with any source address.
func forge(t *testing.T, p *endpointtest.Pod, from, to netip.Addr) {
	t.Helper()
	mac, err := net.ParseMAC(p.Result.Interfaces[atBridge].Mac)
	endpointtest.Must(t, err)
	packet, proto := datagram(from, to, []byte("frame"))
	endpointtest.Must(t, p.Space.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd) //nolint:errcheck // a test
		at := &unix.SockaddrLinklayer{Protocol: proto<<8 | proto>>8, Ifindex: p.Link("eth0").Attrs().Index, Halen: 6}
		copy(at.Addr[:], mac)
		return unix.Sendto(fd, packet, 0, at)
	}))
}

// datagram is a UDP packet to port 9, with its EtherType.
func datagram(from, to netip.Addr, data []byte) (packet []byte, etherType uint16) {
	be := binary.BigEndian
	udp := make([]byte, 8, 8+len(data))
	be.PutUint16(udp, 9)
	be.PutUint16(udp[2:], 9)
	be.PutUint16(udp[4:], uint16(8+len(data)))
	udp = append(udp, data...)
	addrs := append(from.AsSlice(), to.AsSlice()...)
	pseudo := append(append([]byte{}, addrs...), 0, unix.IPPROTO_UDP, 0, byte(len(udp)))
	be.PutUint16(udp[6:], checksum(append(pseudo, udp...)))
	if to.Is6() {
		head := []byte{0x60, 0, 0, 0, 0, byte(len(udp)), unix.IPPROTO_UDP, 64}
		return append(append(head, addrs...), udp...), unix.ETH_P_IPV6
	}
	head := append([]byte{0x45, 0, 0, byte(20 + len(udp)), 0, 1, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}, addrs...)
	be.PutUint16(head[10:], checksum(head))
	return append(head, udp...), unix.ETH_P_IP
}

func checksum(b []byte) uint16 {
	if len(b)%2 == 1 {
		b = append(b, 0)
	}
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// A bridge is internal for all its networks. No network loses its connection because of another
// one, and an open network cannot reach an internal one.
func TestInternalAlone(t *testing.T) {
	w := newWorld(t)
	open, inner := w.Pod("open", dual).Add(), w.Pod("inner", internal)
	inner.Refused(`bridge "tbr0" cannot be internal: container open of network net is on it`)
	w.Fails(inner.Do(spec.Status), "container open of network net")
	endpointtest.Must(t, open.Do(spec.Check))
	endpointtest.Must(t, open.Do(spec.Del))
	endpointtest.Must(t, inner.Do(spec.Status))
	inner.Add()
	open.Refused(`bridge "tbr0" belongs to an internal network`)
	w.Fails(open.Do(spec.Status), "internal network")
	endpointtest.Must(t, inner.Do(spec.Del))
	if e := nft.Internal("tbr0", "")[1]; found(t, e) {
		t.Errorf("%s is left", e)
	}
	open.Add()
}

// The firewall knows a bridge only by its name, even if the configuration uses an alternative name.
func TestInternalAlternativeName(t *testing.T) {
	w := newWorld(t)
	w.Bridge("tbr1", "10.8.0.1/24", "fd08::1/64")
	endpointtest.Must(t, w.HostConn().LinkAddAltName(w.HostLink("tbr1"), "tbr1alt"))
	inner := w.Pod("inner", `"bridge": "tbr1alt", "isDefaultGateway": true, "internal": true, `+endpointtest.Static("10.8.0.5/24")).Add()
	w.Want("the bridge of the result", inner.Result.Interfaces[atBridge].Name, "tbr1")
	endpointtest.Must(t, inner.Do(spec.Check))
	to := endpointtest.Join(node.Client4, "80")
	w.Client.Serve("tcp", to)
	inner.Expect("out of the internal network", "tcp", to, "timeout")
	for _, name := range []string{"tbr1", "tbr1alt"} {
		w.Pod("open-"+name, `"bridge": "`+name+`", `+endpointtest.Static("10.8.0.6/24")).Refused(`bridge "tbr1" belongs to an internal network`)
	}
	endpointtest.Must(t, inner.Do(spec.Del))
}

// The gateway is in a VLAN. Neither its link nor the bridge, which is in VLAN 1 itself, forwards.
// The network of another VLAN is open, but not on a port that also carries an internal VLAN.
func TestInternalVLAN(t *testing.T) {
	nettest.Need(t, nettest.VLANFiltering())
	w := newWorld(t)
	t.Cleanup(func() { w.Host.Delete("tbr0.1"); w.Host.Delete("tbr0.100") })
	inner := w.Pod("inner", internal+`, "vlan": 1`).Add()
	open := w.Pod("open", `"bridge": "tbr0", "isDefaultGateway": true, "vlan": 100, `+endpointtest.Static("10.8.0.5/24")).Add()
	to := endpointtest.Join(node.Client4, "80")
	w.Client.Serve("tcp", to)
	inner.Expect("internal", "tcp", to, "timeout")
	open.Expect("another VLAN", "tcp", to, "client 10.8.0.5")
	got := listen(t, w.Client, endpointtest.Join(node.Client4, "9"))
	frame(t, inner, 0, netip.MustParseAddr(node.Client4))
	w.Host.AskBriefly("udp", endpointtest.Join(node.Client4, "9"))
	w.Want("the client hears", <-got, "who?")
	for _, p := range []*endpointtest.Pod{inner, open} {
		endpointtest.Must(t, p.Do(spec.Check))
	}
	w.Pod("trunk", internal+`, "vlanTrunk": [{"id": 100}]`).Refused("cannot have a vlanTrunk")
}

// Elements were removed from the set. CHECK reports them.
func TestInternalCheck(t *testing.T) {
	w := newWorld(t)
	p := w.Pod("a", internal).Add()
	fw := nft.Open("")
	defer fw.Close() //nolint:errcheck // a test
	fw.Remove(nft.Internal("tbr0", "")[1])
	endpointtest.Must(t, fw.Commit(t.Context()))
	w.Fails(p.Do(spec.Check), `isolation is missing (run patchbay repair); internal { "tbr0"`)
}

func TestInternalInVRF(t *testing.T) {
	nettest.Need(t, nettest.LinkKind("vrf"))
	w := newWorld(t)
	p := w.Pod("a", internal).Add()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "vrf0"
	endpointtest.Must(t, w.HostConn().LinkAdd(&netlink.Vrf{LinkAttrs: attrs, Table: 42}))
	t.Cleanup(func() { w.Host.Delete("vrf0") })
	endpointtest.Must(t, w.HostConn().LinkSetMaster(w.HostLink("tbr0"), w.HostLink("vrf0")))
	w.Fails(p.Do(spec.Check), `bridge "tbr0" cannot be internal: it is in a VRF`)
}

func found(t *testing.T, e nft.Element) bool {
	t.Helper()
	fw := nft.Open("")
	defer fw.Close() //nolint:errcheck // a test
	_, there, err := fw.Get(e.Set, e.Key)
	endpointtest.Must(t, err)
	return there
}
