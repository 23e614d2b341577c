// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/internal/nl"
)

// The driver refuses the host's own namespace as a sandbox, by any path. The host's routes do not
// change, even if the chain is a single plugin that would not refuse.
func TestJoinTheHost(t *testing.T) {
	n := newNode(t, bridgeNet)
	network := n.network("podnet")
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink("/proc/self/ns/net", link))
	for _, key := range []string{"/proc/self/ns/net", link} {
		c, err := n.begin(run{network: network, key: key})
		must(t, err)
		_, err = n.c.Join(n.ctx(), &cnm.JoinRequest{NetworkID: network, EndpointID: c.endpoint, SandboxKey: key})
		if !errorHas(err, "is the network namespace of the host") {
			t.Errorf("%s: %v", key, err)
		}
		_, _ = n.c.EndpointOperInfo(n.ctx(), c.request())
		host := conn(n, "")
		if _, err := host.Link(linkName(c.endpoint)); !nl.IsNotFound(err) {
			t.Errorf("%s: the interface is the host's: %v", key, err)
		}
		must(t, c.leave())
		must(t, c.delete())
	}
}

// A path is no namespace. The driver neither waits for it nor opens it for reading, and removes
// the endpoint.
func TestJoinNonsense(t *testing.T) {
	n := newNode(t, bridgeNet)
	network := n.network("podnet")
	dir := t.TempDir()
	fifo, loop := filepath.Join(dir, "fifo"), filepath.Join(dir, "loop")
	must(t, unix.Mkfifo(fifo, 0o600))
	must(t, os.Symlink(loop, loop))
	for _, key := range []string{dir, fifo, loop, "/proc/self/ns/uts", "/proc/cpuinfo", "/dev/zero", "relative", "a\x00b", strings.Repeat("/a", 5000)} {
		c, err := n.begin(run{network: network, key: key})
		must(t, err)
		_, err = n.c.Join(n.ctx(), &cnm.JoinRequest{NetworkID: network, EndpointID: c.endpoint, SandboxKey: key})
		t.Logf("%.40q: %.100v", key, err)
		must(t, c.leave())
		must(t, c.delete())
	}
}

// A pool of an IPAM plugin that cannot be called is refused, because an address from it could
// never be released.
func TestPoolOfNoPlugin(t *testing.T) {
	n := newNode(t)
	for plugin, want := range map[string]string{"nosuch": `failed to find plugin "nosuch"`, "../../bin/sh": "plugin ../../bin/sh"} {
		conf := `{"name":"x","cniVersion":"1.1.0","plugins":[{"type":"bridge","ipam":{"type":"` + plugin + `","subnet":"198.18.77.0/24"}}]}`
		_, err := n.c.RequestPool(n.ctx(), &cnm.RequestPoolRequest{AddressSpace: space, Pool: "198.18.77.0/24", Options: map[string]string{"cni.conf": conf}})
		if !errorHas(err, want) {
			t.Errorf("%s: %v", plugin, err)
		}
	}
}

// An endpoint with an invalid id, address or option is refused. Nothing is left.
func TestEndpointNonsense(t *testing.T) {
	n := newNode(t, bridgeNet)
	network := n.network("podnet")
	mac := func(s string) cnm.CreateEndpointRequest {
		return cnm.CreateEndpointRequest{Interface: &cnm.Interface{MacAddress: s}}
	}
	address := func(s string) cnm.CreateEndpointRequest {
		return cnm.CreateEndpointRequest{Interface: &cnm.Interface{Address: netip.MustParsePrefix(s)}}
	}
	option := func(key, value string) cnm.CreateEndpointRequest {
		return cnm.CreateEndpointRequest{Options: cnm.Options{key: []byte(value)}}
	}
	id := func(s string) cnm.CreateEndpointRequest { return cnm.CreateEndpointRequest{EndpointID: s} }
	for _, in := range []cnm.CreateEndpointRequest{
		id("x"), id("../../x"), id("a\x00b"), id(strings.Repeat("a", 10000)), id(strings.Repeat("A", 64)),
		mac("x"), mac("02:42:aa:bb:cc:01;IP=10.91.0.9"), mac("ff:ff:ff:ff:ff:ff"), mac("00:00:00:00:00:00"), mac(strings.Repeat("0", 10000)),
		address("10.99.0.1/24"), address("10.91.0.0/24"), address("10.91.0.255/24"), address("127.0.0.1/8"), address("0.0.0.0/0"),
		option(cnm.OptionPortMap, `"x"`), option("cni.args", `["a"]`), option("cni.args", `"IP=1"`), option("cni.dns", `"replace"`), option(cnm.OptionIfName, "7"),
	} {
		in.NetworkID = network
		if in.EndpointID == "" {
			in.EndpointID = n.id()
		}
		if _, err := n.c.CreateEndpoint(n.ctx(), &in); err == nil {
			t.Errorf("taken: %.200s", asJSON(in))
		}
	}
	all, err := n.driver.state.Endpoints.List()
	if err != nil || len(all) > 0 {
		t.Errorf("endpoints are %v, %v", all, err)
	}
}
