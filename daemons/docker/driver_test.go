// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/netns"
)

const (
	dual = `"ipam":{"type":"host-local","ranges":[[{"subnet":"10.91.0.0/24"}],[{"subnet":"fd91::/64"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}`

	bridgeNet  = `{"cniVersion":"1.1.0","name":"podnet","plugins":[{"type":"bridge","bridge":"br-t0","isGateway":true,"ipMasq":true,` + dual + `}]}`
	ptpNet     = `{"cniVersion":"1.1.0","name":"ptpnet","plugins":[{"type":"ptp","ipMasq":true,` + dual + `}]}`
	macvlanNet = `{"cniVersion":"1.1.0","name":"macnet","plugins":[{"type":"macvlan","master":"parent0",` + dual + `}]}`
)

// both runs a test with a dockerd from before 28 and with a current one.
func both(t *testing.T, fn func(t *testing.T, old bool)) {
	for name, old := range map[string]bool{"27": true, "28": false} {
		t.Run(name, func(t *testing.T) { fn(t, old) })
	}
}

func TestTwoContainers(t *testing.T) {
	both(t, func(t *testing.T, old bool) {
		for name, conf := range map[string]string{"podnet": bridgeNet, "ptpnet": ptpNet, "macnet": macvlanNet} {
			if !draw.All(t) && old && name != "ptpnet" {
				continue // the old dockerd with one of them
			}
			t.Run(name, func(t *testing.T) { twoContainers(t, name, conf, old) })
		}
	})
}

func twoContainers(t *testing.T, name, conf string, old bool) {
	n := newNode(t, conf)
	n.old = old
	if name == "macnet" {
		n.parent("parent0")
	}
	network := n.network(name)
	a, b := n.mustStart(run{network: network}), n.mustStart(run{network: network})
	for _, c := range []*container{a, b} {
		if !c.iface.Address.Addr().Is4() || !c.iface.AddressIPv6.Addr().Is6() || c.iface.MacAddress == "" || !c.join.Gateway.IsValid() || c.join.DisableGatewayService {
			t.Errorf("inspect shows %+v, %+v", c.iface, c.join)
		}
	}
	for _, to := range []netip.Prefix{b.iface.Address, b.iface.AddressIPv6} {
		if err := a.reaches(b, to.Addr()); err != nil {
			t.Errorf("%s: %v", to, err)
		}
	}
	a.stop(true)
	b.stop(false)
	if err := b.delete(); err != nil {
		t.Errorf("deleted twice: %v", err)
	}
	if err := b.leave(); err != nil {
		t.Errorf("left after it was deleted: %v", err)
	}
}

func TestAddressAndMACOfTheUser(t *testing.T) {
	n := newNode(t, bridgeNet)
	network := n.network("podnet")
	want := cnm.Interface{MacAddress: "02:42:aa:bb:cc:01", Address: netip.MustParsePrefix("10.91.0.77/24")}
	c := n.mustStart(run{network: network, iface: want, options: map[string]any{cnm.OptionIfName: "lan0", "cni.args": "K8S_POD=x"}})
	if c.iface.Address != want.Address || c.name != "lan0" || !c.iface.AddressIPv6.IsValid() {
		t.Errorf("%+v as %s", c.iface, c.name)
	}
	c.stop(true)
}

func TestInternal(t *testing.T) {
	n := newNode(t, bridgeNet)
	id, err := n.createNetwork(map[string]string{"cni.network": "podnet"}, map[string]any{cnm.OptionInternal: true})
	must(t, err)
	c := n.mustStart(run{network: id})
	if c.join.Gateway.IsValid() || c.join.GatewayIPv6.IsValid() || len(c.join.StaticRoutes) > 0 || !c.join.DisableGatewayService {
		t.Errorf("Join answered %s", asJSON(c.join))
	}
	c.stop(true)
	must(t, n.c.DeleteNetwork(n.ctx(), &cnm.NetworkRequest{NetworkID: id}))
}

// farNet is another network, with another bridge and other subnets.
const farNet = `{"cniVersion":"1.1.0","name":"far","plugins":[{"type":"bridge","bridge":"br-t6","isDefaultGateway":true,"ipMasq":true,
	"ipam":{"type":"host-local","ranges":[[{"subnet":"10.90.0.0/24"}],[{"subnet":"fd90::/64"}]]}}]}`

// A container adds routes with NET_ADMIN. They do not lead out, and routes of other containers do
// not lead in.
func TestInternalIsClosed(t *testing.T) {
	for name, conf := range map[string]string{"podnet": bridgeNet, "packed": packedNet} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, conf, farNet)
			id, err := n.createNetwork(map[string]string{"cni.network": name}, map[string]any{cnm.OptionInternal: true})
			must(t, err)
			a, b := n.mustStart(run{network: id, ports: []cnm.PortBinding{tcp(80, 8080, 8080)}}), n.mustStart(run{network: id})
			must(t, n.c.ProgramExternalConnectivity(n.ctx(), &cnm.ConnectivityRequest{NetworkID: id, EndpointID: a.endpoint}))
			if list := n.published(a); len(list) > 0 {
				t.Errorf("published %v", list)
			}
			far := n.mustStart(run{network: n.network("far")})
			wayOut(n, a, "10.91.0.1", "fd91::1")
			var attempts []attempt
			for _, to := range [][2]netip.Addr{{far.iface.Address.Addr(), a.iface.Address.Addr()}, {far.iface.AddressIPv6.Addr(), a.iface.AddressIPv6.Addr()}} {
				if err := b.reaches(a, to[1]); err != nil {
					t.Errorf("inside: %v", err)
				}
				attempts = append(attempts, attempt{"out of the internal network", a, far, to[0]}, attempt{"into the internal network", far, a, to[1]})
			}
			refused(t, attempts...)
			for _, c := range []*container{a, b, far} {
				c.stop(true)
			}
			must(t, n.c.DeleteNetwork(n.ctx(), &cnm.NetworkRequest{NetworkID: id}))
		})
	}
}

// Our networks reach each other, unless both set cni.isolate.
func TestIsolate(t *testing.T) {
	for value, conf := range map[string]string{"true": bridgeNet, "strict": packedNet} {
		t.Run(value, func(t *testing.T) {
			n := newNode(t, conf, farNet)
			var ids []string
			for _, name := range []string{map[string]string{"true": "podnet", "strict": "packed"}[value], "far"} {
				id, err := n.createNetwork(map[string]string{"cni.network": name, "cni.isolate": value}, nil)
				must(t, err)
				ids = append(ids, id)
			}
			a, far := n.mustStart(run{network: ids[0]}), n.mustStart(run{network: ids[1]})
			const what = "from one to the other"
			refused(t, attempt{what, far, a, a.iface.Address.Addr()}, attempt{what, far, a, a.iface.AddressIPv6.Addr()})
			for i, c := range []*container{a, far} {
				c.stop(true)
				must(t, n.c.DeleteNetwork(n.ctx(), &cnm.NetworkRequest{NetworkID: ids[i]}))
			}
		})
	}
	n := newNode(t, bridgeNet, farNet)
	a, far := n.mustStart(run{network: n.network("podnet")}), n.mustStart(run{network: n.network("far")})
	if err := far.reaches(a, a.iface.Address.Addr()); err != nil {
		t.Errorf("without: %v", err)
	}
	a.stop(true)
	far.stop(true)
}

// When a network is created, options that the plugins cannot satisfy are refused.
func TestShapeRefused(t *testing.T) {
	const span = `{"cniVersion":"1.1.0","name":"%s","plugins":[{"type":"bridge","bridge":"br-t1","isGateway":true,"span":["10.200.0.0/16"],
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.200.3.0/24"}]]}},{"type":"firewall"%s}]}`
	apart := fmt.Sprintf(span, "apart", `,"ingressPolicy":"same-bridge"`)
	whole := strings.Replace(strings.Replace(apart, `"apart"`, `"whole"`, 1), `"plugins":[`, `"plugins":[{"type":"patchbay","plugins":[`, 1) + `]}`
	n := newNode(t, ptpNet, bridgeNet, fmt.Sprintf(span, "lan", ""), apart, whole)
	internal := map[string]any{cnm.OptionInternal: true}
	for want, c := range map[string]struct {
		options map[string]string
		more    map[string]any
	}{
		"--internal: only the plugin bridge": {map[string]string{"cni.network": "ptpnet"}, internal},
		"only networks of the plugin bridge": {map[string]string{"cni.network": "ptpnet", "cni.isolate": "true"}, nil},
		"network lan spans hosts, and the":   {map[string]string{"cni.network": "lan", "cni.isolate": "true"}, nil},
		"network apart spans hosts, and the": {map[string]string{"cni.network": "apart", "cni.isolate": "strict"}, nil},
		`option cni.isolate="x": want true`:  {map[string]string{"cni.network": "podnet", "cni.isolate": "x"}, nil},
	} {
		if _, err := n.createNetwork(c.options, c.more); !errorHas(err, want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	for _, name := range []string{"apart", "whole"} {
		id, err := n.createNetwork(map[string]string{"cni.network": name, "cni.isolate": "true"}, nil)
		if err != nil {
			t.Errorf("%s: an option that the network has on all hosts: %v", name, err)
			continue
		}
		must(t, n.driver.deleteNetwork(n.ctx(), id))
	}
	open := n.mustStart(run{network: n.network("podnet")})
	if _, err := n.createNetwork(map[string]string{"cni.network": "podnet"}, internal); !errorHas(err, `bridge "br-t0" cannot be internal`) {
		t.Error(err)
	}
	open.stop(true)
}

// wayOut adds default routes in a container.
func wayOut(n *node, c *container, gateways ...string) {
	n.Helper()
	in := conn(n, c.key)
	link, err := in.LinkByName(c.name)
	must(n, err)
	for _, gw := range gateways {
		must(n, in.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.ParseIP(gw)}))
	}
}

// attempt is a connection that must not come about.
type attempt struct {
	what     string
	from, to *container
	addr     netip.Addr
}

// refused checks that no attempt reaches its container. The attempts wait at the same time.
func refused(t *testing.T, attempts ...attempt) {
	t.Helper()
	var all sync.WaitGroup
	for _, a := range attempts {
		l := listen(t, a.to.key, a.addr)
		from, err := netns.Open(a.from.key)
		must(t, err)
		all.Go(func() {
			defer l.Close()    //nolint:errcheck // test
			defer from.Close() //nolint:errcheck // read only
			err := from.Do(func() error {
				conn, err := net.DialTimeout("tcp", l.Addr().String(), 400*time.Millisecond)
				if err == nil {
					t.Errorf("%s: %s is reached", a.what, a.addr)
					return conn.Close()
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// The file of the configuration is gone when the container stops. The driver has its own copy.
func TestConfigurationIsKept(t *testing.T) {
	n := newNode(t, bridgeNet)
	c := n.mustStart(run{network: n.network("podnet")})
	n.stop()
	n.opts.ConfDir = t.TempDir()
	n.boot()
	c.stop(true)
}

// The file of the configuration changes. A running container keeps its network, and the next
// container uses the new file. If the file is broken, or Docker has chosen the address, the driver
// uses its copy of the old file.
func TestConfigurationIsFollowed(t *testing.T) {
	n := newNode(t, ptpNet)
	file := filepath.Join(n.opts.ConfDir, "0.conflist")
	network := n.network("ptpnet")
	before := n.mustStart(run{network: network})

	writeFile(t, file, strings.NewReplacer("10.91.", "10.92.", "fd91:", "fd92:", `"ptp",`, `"ptp","mtu":1380,`).Replace(ptpNet))
	after := n.mustStart(run{network: network, ports: []cnm.PortBinding{{Proto: unix.IPPROTO_TCP, Port: 80, HostPort: 18093}}})
	if !netip.MustParsePrefix("10.92.0.0/24").Contains(after.iface.Address.Addr()) || !netip.MustParsePrefix("fd92::/64").Contains(after.iface.AddressIPv6.Addr()) {
		t.Errorf("after the change a container has %v and %v", after.iface.Address, after.iface.AddressIPv6)
	}
	n.stop()
	n.boot()
	for _, to := range []netip.Prefix{before.iface.Address, before.iface.AddressIPv6} {
		if err := after.reaches(before, to.Addr()); err != nil {
			t.Errorf("%s: %v", to, err)
		}
	}

	writeFile(t, file, "{")
	broken := n.mustStart(run{network: network})
	if !netip.MustParsePrefix("10.91.0.0/24").Contains(broken.iface.Address.Addr()) {
		t.Errorf("with a broken file a container has %v", broken.iface.Address)
	}
	writeFile(t, file, strings.Replace(ptpNet, `"type":"ptp"`, `"type":"nosuch"`, 1))
	if _, err := n.start(run{network: network}); err == nil {
		t.Error("a plugin that does not exist was not needed")
	}
	chosen := n.mustStart(run{network: network, iface: cnm.Interface{Address: netip.MustParsePrefix("10.91.0.77/32")}})
	for _, c := range []*container{before, after, broken, chosen} {
		c.stop(true)
	}
}

// If the deletion of a network fails, Docker forgets the network. Its endpoints are removed with it.
func TestDeleteNetworkTakesItsEndpointsAlong(t *testing.T) {
	n := newNode(t, bridgeNet)
	id, err := n.createNetwork(map[string]string{"cni.network": "podnet"}, nil)
	must(t, err)
	c := n.mustStart(run{network: id})
	c.die()
	must(t, n.c.DeleteNetwork(n.ctx(), &cnm.NetworkRequest{NetworkID: id}))
	must(t, c.delete())
}

// Docker and several collections delete the same network at once. Each of them succeeds.
func TestDeleteNetworkAtOnce(t *testing.T) {
	n := newNode(t, bridgeNet)
	for range draw.Number(t, "PATCHBAY_DOCKER_DELETIONS", 10, 50) {
		id, err := n.createNetwork(map[string]string{"cni.network": "podnet"}, nil)
		must(t, err)
		var g sync.WaitGroup
		for range 16 {
			g.Go(func() {
				if err := n.driver.deleteNetwork(n.ctx(), id); err != nil {
					t.Error(err)
				}
			})
		}
		g.Wait()
	}
}

func TestRefusals(t *testing.T) {
	n := newNode(t, bridgeNet)
	for _, c := range []struct {
		options map[string]string
		want    string
	}{
		{nil, "name the CNI network"},
		{map[string]string{"cni.network": "podnet", "cni.conf": "{}"}, "name the CNI network"},
		{map[string]string{"cni.network": "nosuch"}, "nosuch"},
		{map[string]string{"cni.network": "podnet", "cni.netwrok": "x"}, `option "cni.netwrok" is not one`},
		{map[string]string{"cni.network": "podnet", "cni.portmap": "yes"}, "want auto or off"},
		{map[string]string{"cni.network": "podnet", "cni.mode": "sandbox"}, "want auto or hold"},
		{map[string]string{"cni.network": "podnet", "cni.gwbridge": "maybe"}, "want true or false"},
		{map[string]string{"cni.network": "podnet", "cni.args": "IP=1.2.3.4"}, "is Docker's to set"},
		{map[string]string{"cni.network": "podnet", "cni.args": "DOCKER_LABEL_role=db"}, "is the driver's to set"},
		{map[string]string{"cni.network": "podnet", "cni.args": "x"}, "is not KEY=VALUE"},
		{map[string]string{"cni.network": "podnet", "cni.ifprefix": "a/b"}, "characters of an interface name"},
		{map[string]string{"cni.network": "podnet", "cni.dns": "keep"}, "want docker or replace"},
		{map[string]string{"cni.network": "podnet", "cni.labels": ""}, "give the prefix"},
		{map[string]string{"cni.network": "podnet", "cni.labels": "a", "cni.mode": "hold"}, "no plugin runs after the labels are known"},
		{map[string]string{"cni.conf": "relative"}, "want JSON or an absolute path"},
		{map[string]string{"cni.conf": "/dev/zero"}, "want a regular file"},
		{map[string]string{"cni.conf": `{"cniVersion":"1.1.0","name":"x","plugins":[{"type":"nosuchplugin"}]}`}, "nosuchplugin"},
	} {
		_, err := n.createNetwork(c.options, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.options, err, c.want)
		}
	}
}

// After a failed CreateEndpoint, Docker sends no DeleteEndpoint. Nothing is left.
func TestFailedCreateLeavesNothing(t *testing.T) {
	n := newNode(t, bridgeNet)
	network := n.network("podnet")
	for _, r := range []run{
		{network: network, iface: cnm.Interface{Address: netip.MustParsePrefix("10.7.7.7/24")}},
		{network: network, options: map[string]any{"cni.ip": "x"}},
		{network: strings.Repeat("0", 64)},
	} {
		if _, err := n.begin(r); err == nil {
			t.Errorf("%+v was made", r)
		}
	}
	if left := n.left().Of("link"); len(left) > 0 {
		t.Errorf("links: %s", left)
	}
	if all, err := n.driver.state.Endpoints.List(); err != nil || len(all) > 0 {
		t.Errorf("endpoints: %v %v", all, err)
	}
}
