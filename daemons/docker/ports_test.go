// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/docker/state"
	"github.com/patchbay-net/patchbay/internal/test/draw"
)

// outside makes a namespace on a link of the host, with an address.
func (n *node) outside() (path string, host netip.Addr) {
	c := conn(n, "")
	n.parent("uplink")
	peer, err := c.LinkByName("uplinkp")
	must(n, err)
	near, err := c.LinkByName("uplink")
	must(n, err)
	must(n, addAddr(c, near, netip.MustParsePrefix("192.0.2.1/24")))
	key := n.sandbox()
	in := conn(n, key)
	must(n, c.LinkSetNsFd(peer, in.NS.Fd()))
	far, err := in.LinkByName("uplinkp")
	must(n, err)
	must(n, addAddr(in, far, netip.MustParsePrefix("192.0.2.2/24")))
	must(n, in.LinkSetUp(far))
	return key, netip.MustParseAddr("192.0.2.1")
}

func tcp(port, hostPort, end uint16) cnm.PortBinding {
	return cnm.PortBinding{Proto: 6, Port: port, HostPort: hostPort, HostPortEnd: end}
}

// published returns an endpoint's ports in the state.
func (n *node) published(c *container) portList {
	n.Helper()
	e, err := n.driver.state.Endpoints.Get(c.endpoint)
	must(n, err)
	return e.Published
}

const portNet = `{"cniVersion":"1.1.0","name":"ports","plugins":[{"type":"bridge","bridge":"br-t5","isGateway":true,"ipMasq":true,` + dual + `},
	{"type":"firewall"},{"type":"portmap","capabilities":{"portMappings":true}}]}`

func TestPorts(t *testing.T) {
	both(t, func(t *testing.T, old bool) {
		for name, conf := range map[string]string{"ports": portNet, "podnet": bridgeNet} {
			if !draw.All(t) && old != (name == "podnet") {
				continue // each network with one dockerd
			}
			t.Run(name, func(t *testing.T) { fixedRandomRange(t, name, conf, old) })
		}
	})
}

func fixedRandomRange(t *testing.T, name, conf string, old bool) {
	n := newNode(t, conf)
	n.old = old
	outside, host := n.outside()
	busy, err := net.Listen("tcp", ":9000")
	must(t, err)
	defer busy.Close() //nolint:errcheck // test
	c := n.mustStart(run{network: n.network(name), ports: []cnm.PortBinding{tcp(80, 8080, 8080), tcp(80, 0, 0), tcp(80, 9000, 9001)}})
	list := n.published(c)
	if len(list) != 3 || list[0].HostPort != 8080 || list[1].HostPort < firstRandom || list[2].HostPort != 9001 || !list[2].Chosen {
		t.Fatalf("published %v", list)
	}
	var l net.Listener
	within(t, c.key, func() (err error) { l, err = net.Listen("tcp", ":80"); return err })
	defer l.Close() //nolint:errcheck // test
	for _, p := range list {
		if err := dial(t, outside, netip.AddrPortFrom(host, p.HostPort).String()); err != nil {
			t.Errorf("port %d: %v", p.HostPort, err)
		}
	}
	must(t, n.c.RevokeExternalConnectivity(n.ctx(), c.request()))
	if err := dial(t, outside, netip.AddrPortFrom(host, 8080).String()); err == nil || len(n.published(c)) > 0 {
		t.Error("the port is open after Revoke")
	}
	// The gateway comes back to this network.
	options := cnm.Options{}
	must(t, options.Set(cnm.OptionPortMap, []cnm.PortBinding{tcp(80, 8080, 8080)}))
	must(t, n.c.ProgramExternalConnectivity(n.ctx(), &cnm.ConnectivityRequest{NetworkID: c.network, EndpointID: c.endpoint, Options: options}))
	if err := dial(t, outside, netip.AddrPortFrom(host, 8080).String()); err != nil {
		t.Error(err)
	}
	c.stop(false)
}

// Another container has a fixed port. The start fails, and nothing is left.
func TestPortTaken(t *testing.T) {
	n := newNode(t, bridgeNet)
	network := n.network("podnet")
	a := n.mustStart(run{network: network, ports: []cnm.PortBinding{tcp(80, 8080, 8080)}})
	key := n.sandbox()
	_, err := n.start(run{network: network, key: key, ports: []cnm.PortBinding{tcp(80, 8080, 8080)}})
	if err == nil || !strings.Contains(err.Error(), "host port 8080/tcp is another container's") {
		t.Errorf("error is %v", err)
	}
	a.stop(true)
}

// A port on which a program of the host listens is refused.
func TestPortOfAProgram(t *testing.T) {
	n := newNode(t, bridgeNet)
	busy, err := net.Listen("tcp", "127.0.0.1:9000")
	must(t, err)
	defer busy.Close() //nolint:errcheck // test
	r := run{network: n.network("podnet"), ports: []cnm.PortBinding{tcp(80, 9000, 9000)}}
	if _, err := n.start(r); !errorHas(err, "host port 9000/tcp is in use by a program of this host") {
		t.Errorf("error is %v", err)
	}
	must(t, busy.Close())
	n.mustStart(r).stop(true)
}

const fourNet = `{"cniVersion":"1.1.0","name":"four","plugins":[{"type":"bridge","bridge":"br-t8","isGateway":true,"ipMasq":true,
	"ipam":{"type":"host-local","subnet":"10.89.0.0/24","routes":[{"dst":"0.0.0.0/0"}]}}]}`

// A port that would lead nowhere is refused.
func TestPortsThatLeadNowhere(t *testing.T) {
	n := newNode(t, fourNet)
	network := n.network("four")
	for ip, want := range map[string]string{
		"::":           "publish port 80: host address :: is of IPv6, and the container has no IPv6 address on network four",
		"2001:db8::7":  "and the container has no IPv6 address",
		"198.51.100.7": "publish port 80: host address 198.51.100.7 is not an address of this host",
	} {
		for i, proto := range []uint8{6, 17, 132} {
			for j, last := range []uint16{9300, 9310} {
				if !draw.All(t) && (i+j)%2 == 1 {
					continue
				}
				b := cnm.PortBinding{Proto: proto, Port: 80, HostIP: ip, HostPort: 9300, HostPortEnd: last}
				if _, err := n.start(run{network: network, key: n.sandbox(), ports: []cnm.PortBinding{b}}); !errorHas(err, want) {
					t.Errorf("%s, protocol %d: %v", ip, proto, err)
				}
			}
		}
	}
	on := func(ip string) cnm.PortBinding {
		return cnm.PortBinding{Proto: 6, Port: 80, HostIP: ip, HostPort: 9300, HostPortEnd: 9300}
	}
	for _, ip := range []string{"0.0.0.0", "127.0.0.1", ""} {
		n.mustStart(run{network: network, ports: []cnm.PortBinding{on(ip)}}).stop(true)
	}
}

func TestPortsOff(t *testing.T) {
	n := newNode(t, bridgeNet)
	id, err := n.createNetwork(map[string]string{"cni.network": "podnet", "cni.portmap": "off"}, nil)
	must(t, err)
	if _, err := n.begin(run{network: id, ports: []cnm.PortBinding{tcp(80, 0, 0)}}); err == nil || !strings.Contains(err.Error(), "no plugin of network podnet publishes ports") {
		t.Errorf("error is %v", err)
	}
	must(t, n.c.DeleteNetwork(n.ctx(), &cnm.NetworkRequest{NetworkID: id}))
}

func TestChoose(t *testing.T) {
	one, two := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
	used := func() *usedPorts {
		all := new(usedPorts)
		all.add([]state.Port{{Proto: 6, HostPort: 21000}, {Proto: 6, HostPort: 21001, HostIP: one}, {Proto: 17, HostPort: 21002}}, "web")
		return all
	}
	on := func(b cnm.PortBinding, ip netip.Addr) cnm.PortBinding {
		b.HostIP = ip.String()
		return b
	}
	for name, c := range map[string]struct {
		asked cnm.PortBinding
		try   int
		want  string
	}{
		"fixed":                    {tcp(80, 21002, 21002), 0, "*:21002->80/tcp"},
		"first that is free":       {tcp(80, 21000, 21005), 0, "*:21002->80/tcp"},
		"other address":            {on(tcp(80, 21001, 21001), two), 0, "127.0.0.2:21001->80/tcp"},
		"same address":             {on(tcp(80, 21001, 21001), one), 0, "another container's, web"},
		"on every address":         {tcp(80, 21001, 21001), 0, "another container's"},
		"full":                     {tcp(80, 21000, 21001), 0, "no host port of 21000-21001 is free"},
		"after one that was taken": {tcp(80, 21002, 21009), 3, "*:21005->80/tcp"},
		"bad address":              {cnm.PortBinding{Proto: 6, Port: 80, HostIP: "x"}, 0, "host address"},
	} {
		got, err := choose([]cnm.PortBinding{c.asked}, used(), c.try)
		text := portList(got).String()
		if err != nil {
			text = err.Error()
		}
		if !strings.Contains(text, c.want) {
			t.Errorf("%s: %s, want %s", name, text, c.want)
		}
	}
	if _, err := choose([]cnm.PortBinding{tcp(1, 22000, 22000), tcp(2, 22000, 22000)}, new(usedPorts), 0); !errorHas(err, "publish port 2: host port 22000/tcp is published twice") {
		t.Error(err)
	}
	got, err := choose([]cnm.PortBinding{tcp(1, 22000, 22009), tcp(2, 22000, 22009)}, new(usedPorts), 0)
	if err != nil || got[0].HostPort == got[1].HostPort {
		t.Errorf("%v %v", got, err)
	}
}

// picky is a plugin that publishes only one host port, as if programs had taken the other ports
// after the choice.
const picky = `#!/bin/sh
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.1.0","supportedVersions":["1.1.0"]}' ;;
ADD) case $(cat) in *'"hostPort":9002'*) echo '{"cniVersion":"1.1.0"}' ;; *) echo '{"cniVersion":"1.1.0","code":11,"msg":"taken"}'; exit 1 ;; esac ;;
esac
exit 0
`

// For a range, the driver tries other ports. For a fixed port there is no other.
func TestPortsAreTried(t *testing.T) {
	n := newNode(t, `{"cniVersion":"1.1.0","name":"picky","plugins":[{"type":"bridge","bridge":"br-t9","isGateway":true,`+dual+`},{"type":"picky","capabilities":{"portMappings":true}}]}`)
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "picky"), []byte(picky), 0o755))
	n.stop()
	n.opts.Plugins = append(n.opts.Plugins, dir)
	n.boot()
	network := n.network("picky")
	c := n.mustStart(run{network: network, ports: []cnm.PortBinding{tcp(80, 9000, 9005)}})
	if list := n.published(c); len(list) != 1 || list[0].HostPort != 9002 {
		t.Errorf("published %v", list)
	}
	c.stop(true)
	for _, b := range []cnm.PortBinding{tcp(80, 9000, 9000), tcp(80, 9003, 9005)} {
		if _, err := n.start(run{network: network, key: n.sandbox(), ports: []cnm.PortBinding{b}}); !errorHas(err, "taken") {
			t.Errorf("%v: %v", b, err)
		}
	}
}
