// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"path/filepath"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/cnm"
)

const sixNet = `{"cniVersion":"1.1.0","name":"podnet","plugins":[{"type":"bridge","bridge":"br-t0","isGateway":true,
	"ipam":{"type":"host-local","ranges":[[{"subnet":"fd91::/64"}]],"routes":[{"dst":"::/0"}]}}]}`

// --ipv4=false: a configuration with IPv4 is refused, when the network is created or, if the file
// changes later, when a container starts.
func TestWithoutIPv4(t *testing.T) {
	n := newNode(t, bridgeNet)
	create := func() (string, error) {
		return n.createNetwork(map[string]string{"cni.network": "podnet"}, map[string]any{cnm.OptionEnableIPv4: false, cnm.OptionEnableIPv6: true})
	}
	if _, err := create(); !errorHas(err, "--ipv4=false: the configuration decides about addresses, and that of network podnet has the IPv4 range 10.91.0.0/24") {
		t.Errorf("IPv4 and IPv6: %v", err)
	}
	file := filepath.Join(n.opts.ConfDir, "0.conflist")
	writeFile(t, file, sixNet)
	network, err := create()
	must(t, err)
	t.Cleanup(func() { n.check(n.c.DeleteNetwork(n.ctx(), &cnm.NetworkRequest{NetworkID: network})) })
	c := n.mustStart(run{network: network})
	if c.iface.Address.IsValid() || !c.iface.AddressIPv6.IsValid() {
		t.Errorf("addresses %s and %s", c.iface.Address, c.iface.AddressIPv6)
	}
	writeFile(t, file, bridgeNet)
	if _, err := n.start(run{network: network, key: n.sandbox()}); !errorHas(err, "the IPAM plugin of network podnet gave 10.91.0.2") {
		t.Errorf("IPv4 later: %v", err)
	}
	c.stop(true)
}
