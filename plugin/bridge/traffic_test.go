// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"net"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/spec"
)

func TestTraffic(t *testing.T) { newWorld(t).Masquerades(dual + `, "ipMasq": true`) }

// Without masquerade the outside sees the container's own address.
func TestTrafficPlain(t *testing.T) {
	w := newWorld(t)
	a := w.Pod("a", dual).Add()
	w.Client.Serve("tcp", endpointtest.Join(node.Client4, "80"))
	w.Client.Serve("tcp", endpointtest.Join(node.Client6, "80"))
	w.Want("container to the outside", a.Ask("tcp", endpointtest.Join(node.Client4, "80")), "client "+a.IP(0))
	w.Want("container to the outside", a.Ask("tcp", endpointtest.Join(node.Client6, "80")), "client "+a.IP(1))
}

// An address moves from one container to the next and works at once, although the host and its
// neighbours still have the first container's MAC.
func TestReuse(t *testing.T) {
	const gateway = `"bridge": "tbr0", "isDefaultGateway": true, `
	for name, conf := range map[string]string{"static": gateway + endpointtest.Static("10.9.0.9/24", "fd09::9/64"), "host-local": dual} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			neighbour := w.Pod("n", gateway+endpointtest.Static("10.9.0.200/24", "fd09::200/64")).Add()
			for _, name := range []string{"one", "two", "three"} {
				p := w.Pod(name, conf)
				if conf == dual {
					p.Call.Args = "IP=10.9.0.9"
				}
				endpointtest.Must(t, p.Do(spec.Add))
				for n := range p.Result.IPs {
					at := endpointtest.Join(p.IP(n), "80")
					p.Serve("tcp", at)
					w.Want("host to container "+name, w.Host.Ask("tcp", at), name+" "+p.Gateway(n))
					w.Want("neighbour to container "+name, neighbour.Ask("tcp", at), name+" "+neighbour.IP(n))
				}
				endpointtest.Must(t, p.Do(spec.Del))
			}
		})
	}
}

func TestPortIsolation(t *testing.T) {
	w := newWorld(t)
	a, b := w.Pod("a", dual+`, "portIsolation": true`).Add(), w.Pod("b", dual+`, "portIsolation": true`).Add()
	b.Serve("tcp", endpointtest.Join(b.IP(0), "80"))
	if got := a.Ask("tcp", endpointtest.Join(b.IP(0), "80")); got == "b "+a.IP(0) {
		t.Error("an isolated port reaches another")
	}
	w.Want("host to isolated", w.Host.Ask("tcp", endpointtest.Join(b.IP(0), "80")), "b "+b.Gateway(0))
	endpointtest.Must(t, b.Do(spec.Check))
	endpointtest.Must(t, w.HostConn().LinkSetIsolated(port(w, b), false))
	w.Fails(b.Do(spec.Check), "isolation of port")
}

func TestHairpin(t *testing.T) {
	w := newWorld(t)
	a := w.Pod("a", dual+`, "hairpinMode": true`).Add()
	flags, err := w.HostConn().PortFlags(port(w, a).Attrs().Index)
	endpointtest.Must(t, err)
	if !flags.Hairpin {
		t.Error("hairpin is off")
	}
	endpointtest.Must(t, a.Do(spec.Check))
	endpointtest.Must(t, w.HostConn().LinkSetHairpin(port(w, a), false))
	w.Fails(a.Do(spec.Check), "hairpin mode of")
}

func TestMACSpoofing(t *testing.T) {
	w := newWorld(t)
	a := w.Pod("a", dual+`, "macspoofchk": true`).Add()
	w.Host.Serve("udp", endpointtest.Join(a.Gateway(0), "53"))
	w.Want("with its own address", a.Ask("udp", endpointtest.Join(a.Gateway(0), "53")), "host "+a.IP(0))
	eth0, err := a.Conn().Link("eth0")
	endpointtest.Must(t, err)
	endpointtest.Must(t, a.Conn().LinkSetHardwareAddr(eth0, net.HardwareAddr{2, 0, 0, 0, 0, 1}))
	w.Want("with another's address", a.AskBriefly("udp", endpointtest.Join(a.Gateway(0), "53")), "timeout")
}

// IPv6 causes no wait, except with enabledad.
func TestDuplicateDetection(t *testing.T) {
	w := newWorld(t)
	slow(w.Host)
	a := w.Pod("a", `"bridge": "tbr0", "isGateway": true, `+endpointtest.Static("fd09::5/64"))
	slow(a.Space)
	start := time.Now()
	a.Add()
	if took := time.Since(start); took > quick {
		t.Errorf("ADD of an IPv6 address took %v", took)
	}
	start = time.Now()
	p := w.Pod("b", `"bridge": "tbr0", "enabledad": true, `+endpointtest.Static("fd09::b/64")).Add()
	if took := time.Since(start); took < 500*time.Millisecond {
		t.Errorf("ADD with enabledad took %v: nobody looked for duplicates", took)
	}
	w.Want("enhanced_dad", p.ReadSysctl("net/ipv6/conf/eth0/enhanced_dad"), "1")
	w.Pod("c", `"bridge": "tbr0", "enabledad": true, `+endpointtest.Static("fd09::5/64")).Refused("in DADFAILED state")
}
