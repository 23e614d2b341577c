// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/nettest/node"
	"github.com/patchbay-net/patchbay/spec"
)

func TestTraffic(t *testing.T) {
	w := newWorld(t)
	a, b := w.pod("a", dual+`, "ipMasq": true`).add(), w.pod("b", dual+`, "ipMasq": true`).add()
	for n, outside := range []string{node.Client4, node.Client6} {
		uplink := []string{node.Uplink4, node.Uplink6}[n]
		for _, network := range []string{"tcp", "udp"} {
			b.Serve(network, join(b.ip(n), "80"))
			w.Client.Serve(network, join(outside, "80"))
			w.want("container to container", a.Ask(network, join(b.ip(n), "80")), "b "+a.ip(n))
			w.want("container to the outside", a.Ask(network, join(outside, "80")), "client "+uplink)
			w.want("host to container", w.Host.Ask(network, join(b.ip(n), "80")), "b "+gateway(b, n))
		}
	}
}

// Without masquerade the container's own address is seen outside.
func TestTrafficPlain(t *testing.T) {
	w := newWorld(t)
	a := w.pod("a", dual).add()
	w.Client.Serve("tcp", join(node.Client4, "80"))
	w.Client.Serve("tcp", join(node.Client6, "80"))
	w.want("container to the outside", a.Ask("tcp", join(node.Client4, "80")), "client "+a.ip(0))
	w.want("container to the outside", a.Ask("tcp", join(node.Client6, "80")), "client "+a.ip(1))
}

// An address that goes from one container to the next works at once, though the
// host and its neighbours have the former one's Ethernet address (pain 26).
func TestReuse(t *testing.T) {
	w := newWorld(t)
	neighbour := w.pod("n", `"bridge": "tbr0", "isDefaultGateway": true, `+fixed("10.9.0.2/24", "fd09::2/64")).add()
	for i, name := range []string{"one", "two", "three"} {
		p := w.pod(name, `"bridge": "tbr0", "isDefaultGateway": true, `+fixed("10.9.0.9/24", "fd09::9/64"))
		must(t, p.do(spec.Add))
		for _, addr := range []string{"10.9.0.9", "fd09::9"} {
			p.Serve("tcp", join(addr, "80"))
			w.want("host to container "+name, w.Host.Ask("tcp", join(addr, "80")), name+" "+map[string]string{"10.9.0.9": "10.9.0.1", "fd09::9": "fd09::1"}[addr])
			w.want("neighbour to container "+name, neighbour.Ask("tcp", join(addr, "80")), name+" "+neighbour.ip(map[string]int{"10.9.0.9": 0, "fd09::9": 1}[addr]))
		}
		if i < 2 {
			must(t, p.do(spec.Del))
		}
	}
}

func TestPortIsolation(t *testing.T) {
	w := newWorld(t)
	a, b := w.pod("a", dual+`, "portIsolation": true`).add(), w.pod("b", dual+`, "portIsolation": true`).add()
	b.Serve("tcp", join(b.ip(0), "80"))
	if got := a.Ask("tcp", join(b.ip(0), "80")); got == "b "+a.ip(0) {
		t.Error("an isolated port reaches another")
	}
	w.want("host to isolated", w.Host.Ask("tcp", join(b.ip(0), "80")), "b "+gateway(b, 0))
	must(t, b.do(spec.Check))
	must(t, w.host().LinkSetIsolated(w.port(b), false))
	w.fails(b.do(spec.Check), "isolation of port")
}

func TestHairpin(t *testing.T) {
	w := newWorld(t)
	a := w.pod("a", dual+`, "hairpinMode": true`).add()
	flags, err := w.host().PortFlags(w.port(a).Attrs().Index)
	must(t, err)
	if !flags.Hairpin {
		t.Error("hairpin is off")
	}
	must(t, a.do(spec.Check))
	must(t, w.host().LinkSetHairpin(w.port(a), false))
	w.fails(a.do(spec.Check), "hairpin mode of")
}

func TestMACSpoofing(t *testing.T) {
	w := newWorld(t)
	a := w.pod("a", dual+`, "macspoofchk": true`).add()
	w.Host.Serve("udp", join(gateway(a, 0), "53"))
	w.want("with its own address", a.Ask("udp", join(gateway(a, 0), "53")), "host "+a.ip(0))
	eth0, err := a.Conn().Link("eth0")
	must(t, err)
	must(t, a.Conn().LinkSetHardwareAddr(eth0, net.HardwareAddr{2, 0, 0, 0, 0, 1}))
	w.want("with another's address", a.Ask("udp", join(gateway(a, 0), "53")), "timeout")
}

// IPv6 costs no waiting (pain 7), and with enabledad it does.
func TestDuplicateDetection(t *testing.T) {
	w := newWorld(t)
	start := time.Now()
	w.pod("a", `"bridge": "tbr0", "isGateway": true, `+fixed("fd09::5/64")).add()
	if took := time.Since(start); took > 500*time.Millisecond {
		t.Errorf("ADD of an IPv6 address took %v", took)
	}
	start = time.Now()
	p := w.pod("b", `"bridge": "tbr0", "enabledad": true, `+fixed("fd09::6/64")).add()
	if took := time.Since(start); took < 500*time.Millisecond {
		t.Errorf("ADD with enabledad took %v: nobody looked for duplicates", took)
	}
	w.want("enhanced_dad", p.ReadSysctl("net/ipv6/conf/eth0/enhanced_dad"), "1")
	w.pod("c", `"bridge": "tbr0", "enabledad": true, `+fixed("fd09::5/64")).fails("in DADFAILED state")
}

func gateway(p *pod, n int) string { return p.Result.IPs[n].Gateway.String() }

func join(addr, port string) string {
	return net.JoinHostPort(netip.MustParseAddr(addr).String(), port)
}
