// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
)

// earlier are the attachments that the older build makes. They have every plugin that changes more than its own
// namespace.
var earlier = []struct {
	network, list, ns, ifname string
	addr                      netip.Addr
	port                      uint16 // published; 0: none
}{
	{"chain", `{"cniVersion":"1.1.0","name":"chain","plugins":[
		{"type":"bridge","bridge":"up-br0","isGateway":true,"ipMasq":true,"hairpinMode":true,"ipam":{"type":"host-local",
			"ranges":[[{"subnet":"198.18.7.0/24"}],[{"subnet":"fd07::/64"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}},
		{"type":"portmap","capabilities":{"portMappings":true},"snat":true},
		{"type":"firewall"},
		{"type":"bandwidth","ingressRate":8000000,"ingressBurst":800000,"egressRate":8000000,"egressBurst":800000},
		{"type":"tuning","sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1"},"mtu":1400}]}`,
		"one", "eth0", netip.MustParseAddr("198.18.7.2"), 18081},
	{"one", `{"cniVersion":"1.1.0","name":"one","plugins":[{"type":"patchbay","capabilities":{"portMappings":true},"plugins":[
		{"type":"ptp","ipMasq":true,"ipam":{"type":"host-local","subnet":"198.18.8.0/24","routes":[{"dst":"0.0.0.0/0"}]}},
		{"type":"portmap","capabilities":{"portMappings":true},"snat":true},{"type":"firewall"}]}]}`,
		"three", "eth0", netip.MustParseAddr("198.18.8.2"), 18083},
	{"lan", `{"cniVersion":"1.1.0","name":"lan","plugins":[
		{"type":"macvlan","master":"up0","ipam":{"type":"static","addresses":[{"address":"198.18.9.5/24"}]}},{"type":"sbr"}]}`,
		"four", "eth1", netip.MustParseAddr("198.18.9.5"), 0},
}

// uplink is the node's own address.
var uplink = netip.MustParseAddr("192.0.2.2")

// TestUpgrade puts the newer build on a node whose containers the older one attached. The newer build finds nothing
// wrong. The containers' traffic flows before and after it writes its own table. No address or port is given out
// twice, and DEL leaves nothing.
func TestUpgrade(t *testing.T) {
	older, newer := twoBuilds(t)
	onNode(t, func(t *testing.T) {
		before := leak.Must(t)
		run(t, "sh", "-ec", "ip link add up0 type veth peer name up1; ip link set up1 up; ip addr add 192.0.2.2/24 dev up0; ip link set up0 up; ip route add default via 192.0.2.1")
		attachEarlier(t, older+"/patchbay")
		cli := func(args ...string) string { t.Helper(); return run(t, newer+"/patchbay", args...) }
		flows(t)
		healthy(t, cli)
		five := addBeside(t, newer+"/patchbay")
		flows(t)
		healthy(t, cli)
		cli("del", "chain", five)
		for _, a := range earlier {
			cli("del", a.network, a.ns, "-i", a.ifname)
		}
		for _, a := range earlier[:2] {
			refused(t, "", uplink, a.port)
		}
		cli("gc")
		run(t, "ip", "link", "del", "up0")
		run(t, "ip", "link", "del", "up-br0") // a bridge stays, as the reference's
		leak.NoLeaks(t, before)
	})
}

// attachEarlier attaches the containers, two of which serve.
func attachEarlier(t *testing.T, program string) {
	t.Helper()
	for _, a := range earlier {
		file := filepath.Join("/etc/cni/net.d", a.network+".conflist")
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(a.list), 0o600); err != nil {
			t.Fatal(err)
		}
		newNamespace(t, a.ns)
		args := []string{"add", a.network, a.ns, "-i", a.ifname}
		if a.port != 0 {
			args = append(args, fmt.Sprintf("--publish=%d:80", a.port), fmt.Sprintf("--publish=%d:80/udp", a.port))
		}
		run(t, program, args...)
		if a.port != 0 {
			serve(t, a.ns, 80)
		}
	}
}

// flows sends traffic to each container, and through its published port.
func flows(t *testing.T) {
	t.Helper()
	for _, a := range earlier[:2] {
		reaches(t, "", a.addr, 80, noAddr)
		reaches(t, "", uplink, a.port, noAddr)
	}
}

// healthy fails the test if the build finds anything wrong on the node, or to remove.
func healthy(t *testing.T, cli func(args ...string) string) {
	t.Helper()
	for _, a := range earlier {
		cli("check", a.network, a.ns, "-i", a.ifname)
	}
	cli("repair")
	cli("gc")
	cli("doctor")
}

// addBeside attaches one more container to the first network and returns its namespace. An
// address or a port of an earlier container is refused.
func addBeside(t *testing.T, program string) string {
	t.Helper()
	newNamespace(t, "five")
	for _, taken := range []string{"--publish=18081:80", "--ip=198.18.7.2"} {
		if out, err := exec.Command(program, "add", "chain", "five", taken).CombinedOutput(); err == nil {
			t.Errorf("%s was given out twice:\n%s", taken, out)
		}
	}
	run(t, program, "add", "chain", "five")
	return "five"
}
