// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"math"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
)

// object is a piece of configuration.
type object = map[string]any

// network is one configuration list with its plugins.
type network struct {
	name, version string
	bridge        string   // name of the bridge, if main is "bridge"
	main          string   // plugin that makes the interface: bridge, ptp or loopback
	backend       string   // the reference's firewall backend, "" for its choice
	subnets       []string // one range for each
	form          string   // "chain" for a plugin list, "patchbay" for one plugin that runs them all
	chained       []object
	list          *libcni.NetworkConfigList
}

// newNetwork makes the usual chain of a production node: the main plugin with
// dual-stack host-local addresses and masquerade, portmap, firewall, bandwidth
// and tuning, as far as the version allows them.
func newNetwork(t testing.TB, main, version string) *network {
	t.Helper()
	n := &network{name: main + "-net", version: version, main: main, bridge: "pb0", form: "chain", subnets: []string{"10.88.0.0/24", "fd00:88::/64"}}
	n.chained = []object{{"type": "portmap", "capabilities": object{"portMappings": true}, "snat": true}}
	if atLeast(version, "0.4.0") {
		n.chained = append(n.chained, object{"type": "firewall"})
	}
	n.chained = append(n.chained,
		object{"type": "bandwidth", "capabilities": object{"bandwidth": true}},
		object{"type": "tuning", "sysctl": object{"net.core.somaxconn": "500"}})
	if !atLeast(version, "0.3.0") { // such versions have no configuration lists
		n.chained = nil
	}
	if main == "loopback" {
		n.chained = nil
	}
	n.parse(t)
	return n
}

// parse makes libcni's form of the network. A caller that changes the network calls it again.
func (n *network) parse(t testing.TB) {
	t.Helper()
	plugins := append([]object{n.mainPlugin()}, n.chained...)
	for _, p := range plugins {
		switch {
		case n.backend != "" && p["type"] == "portmap":
			p["backend"] = n.backend
		case n.backend != "" && p["ipMasq"] != nil:
			p["ipMasqBackend"] = n.backend
		}
	}
	if n.form == "patchbay" { // as `patchbay convert` writes it
		plugins = []object{{"type": "patchbay", "plugins": plugins, "capabilities": object{"portMappings": true, "bandwidth": true}}}
	}
	conf := object{"cniVersion": n.version, "name": n.name, "plugins": plugins}
	raw, err := json.Marshal(conf)
	if err != nil {
		t.Fatal(err)
	}
	if n.list, err = libcni.NetworkConfFromBytes(raw); err != nil {
		t.Fatalf("parse %s: %v", raw, err)
	}
}

// mainPlugin is the first plugin's configuration.
func (n *network) mainPlugin() object {
	if n.main == "loopback" {
		return object{"type": "loopback"}
	}
	ranges := [][]object{}
	for _, subnet := range n.subnets {
		ranges = append(ranges, []object{{"subnet": subnet}})
	}
	ipam := object{"type": "host-local", "ranges": ranges, "routes": []object{{"dst": "0.0.0.0/0"}, {"dst": "::/0"}}}
	p := object{"type": n.main, "ipMasq": true, "ipam": ipam}
	if n.main == "bridge" {
		p["bridge"], p["isGateway"], p["hairpinMode"] = n.bridge, true, true
	}
	return p
}

// types lists the plugins of the chain with their delegate.
func (n *network) types() []string {
	types := []string{n.main}
	if n.main != "loopback" {
		types = append(types, "host-local")
	}
	for _, p := range n.chained {
		types = append(types, p["type"].(string))
	}
	if n.form == "patchbay" {
		types = append(types, "patchbay")
	}
	return types
}

// has reports whether the chain has a plugin.
func (n *network) has(plugin string) bool {
	return strings.Contains(" "+strings.Join(n.types(), " ")+" ", " "+plugin+" ")
}

// pod is a container without a runtime: a namespace with one interface of a network.
type pod struct {
	id, ifname string
	hostPort   uint16 // mapped to port 80 when not 0
	result     *types100.Result
}

// newPod makes the pod's namespace, which ends with the test.
func newPod(t *testing.T, id string, hostPort uint16) *pod {
	t.Helper()
	newNamespace(t, id)
	return &pod{id: id, ifname: "eth0", hostPort: hostPort}
}

// runtimeConf returns what containerd's CRI passes: arguments in random order, capabilities under
// Go's field names, pod annotations of the largest size, and a bandwidth burst of MaxUint32 bits.
func (p *pod) runtimeConf() *libcni.RuntimeConf {
	args := [][2]string{
		{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", p.id},
		{"K8S_POD_INFRA_CONTAINER_ID", p.id}, {"K8S_POD_UID", "12345678-" + p.id},
	}
	rand.Shuffle(len(args), func(i, j int) { args[i], args[j] = args[j], args[i] })
	caps := object{
		"dns":        object{"Servers": []string{"10.96.0.10"}, "Searches": []string{"cluster.local"}, "Options": nil},
		"cgroupPath": "/kubepods/" + p.id,
		"io.kubernetes.cri.pod-annotations": object{
			"kubectl.kubernetes.io/last-applied-configuration": strings.Repeat("secret", 256<<10/6),
		},
		"bandwidth": object{
			"IngressRate": 100_000_000, "IngressBurst": math.MaxUint32,
			"EgressRate": 80_000_000, "EgressBurst": math.MaxUint32,
		},
	}
	if p.hostPort != 0 {
		caps["portMappings"] = []object{
			{"HostPort": p.hostPort, "ContainerPort": 80, "Protocol": "tcp", "HostIP": ""},
			{"HostPort": p.hostPort, "ContainerPort": 80, "Protocol": "udp", "HostIP": ""},
		}
	}
	return &libcni.RuntimeConf{ContainerID: p.id, NetNS: nsPath(p.id), IfName: p.ifname, Args: args, CapabilityArgs: caps}
}

// addr is the pod's address of one family.
func (p *pod) addr(v6 bool) netip.Addr {
	for _, ip := range p.result.IPs {
		if a, _ := netip.AddrFromSlice(ip.Address.IP); a.Unmap().Is6() == v6 {
			return a.Unmap()
		}
	}
	return netip.Addr{}
}

// caller is a runtime: libcni with a plugin directory.
type caller struct {
	*testing.T
	cni *libcni.CNIConfig
}

// call makes a runtime that finds its plugins in dir. Several runtimes share the cache, like one
// runtime before and after its plugins were replaced.
func call(t *testing.T, dir string) *caller {
	return &caller{t, libcni.NewCNIConfig([]string{dir}, nil)}
}

// add attaches a pod. If that fails, the test ends.
func (c *caller) add(n *network, p *pod) types.Result {
	c.Helper()
	res, err := c.cni.AddNetworkList(context.Background(), n.list, p.runtimeConf())
	if err != nil {
		c.Fatalf("ADD %s to %s: %v", p.id, n.name, err)
	}
	if p.result, err = types100.NewResultFromResult(res); err != nil {
		c.Fatalf("ADD %s to %s: %v", p.id, n.name, err)
	}
	return res
}

// del detaches a pod.
func (c *caller) del(n *network, p *pod) {
	c.Helper()
	if err := c.cni.DelNetworkList(context.Background(), n.list, p.runtimeConf()); err != nil {
		c.Errorf("DEL %s from %s: %v", p.id, n.name, err)
	}
}

// check checks a pod. For a version without CHECK, the runtime must report that.
func (c *caller) check(n *network, p *pod) {
	c.Helper()
	err := c.cni.CheckNetworkList(context.Background(), n.list, p.runtimeConf())
	if has := atLeast(n.version, "0.4.0"); has != (err == nil) {
		c.Errorf("CHECK %s in %s %s: %v", p.id, n.name, n.version, err)
	}
}

// gc collects everything of a network but the given pods.
func (c *caller) gc(n *network, living ...*pod) {
	c.Helper()
	args := &libcni.GCArgs{}
	for _, p := range living {
		args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: p.id, IfName: p.ifname})
	}
	if err := c.cni.GCNetworkList(context.Background(), n.list, args); err != nil {
		c.Errorf("GC of %s: %v", n.name, err)
	}
}

// status asks whether the network is ready.
func (c *caller) status(n *network) {
	c.Helper()
	if err := c.cni.GetStatusNetworkList(context.Background(), n.list); err != nil {
		c.Errorf("STATUS of %s: %v", n.name, err)
	}
}

// versions asks every plugin of the chain which versions it supports.
func (c *caller) versions(n *network) {
	c.Helper()
	for _, plugin := range n.types() {
		info, err := c.cni.GetVersionInfo(context.Background(), plugin)
		if err != nil {
			c.Errorf("VERSION of %s: %v", plugin, err)
			continue
		}
		if got := info.SupportedVersions(); !contains(got, n.version) || !contains(got, "1.1.0") {
			c.Errorf("VERSION of %s: %v lacks %s", plugin, got, n.version)
		}
	}
}

// atLeast compares spec versions.
func atLeast(v, than string) bool {
	ok, err := version.GreaterThanOrEqualTo(v, than)
	return err == nil && ok
}

func contains(list []string, s string) bool {
	for _, e := range list {
		if e == s {
			return true
		}
	}
	return false
}
