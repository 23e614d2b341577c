// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package refuse

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/cli"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/all"
	"github.com/patchbay-net/patchbay/spec"
)

// TestMain also makes the test binary the program whose command lines are refused.
func TestMain(m *testing.M) {
	if name, value, _ := strings.Cut(asProgram, "="); os.Getenv(name) == value {
		os.Exit(cli.Main(all.Plugins()))
	}
	nettest.Main(m)
}

// run calls a plugin in process and also returns its standard error.
func run(pluginType string, c *spec.Call) (out []byte, stderr string, err error) {
	var log bytes.Buffer
	b := plugin.Builtin{NewSession: func() *plugin.Session {
		s := plugin.NewSession(all.Plugins())
		s.Stderr = &log
		return s
	}}
	out, err = b.Invoke(context.Background(), pluginType, c)
	return out, log.String(), err
}

func call(verb spec.Verb, ns, conf string) *spec.Call {
	return &spec.Call{Verb: verb, ContainerID: "bad", NetNS: ns, IfName: "eth0", Path: []string{"/nonexistent"}, Config: []byte(conf)}
}

const prev = `{"cniVersion":"1.0.0","interfaces":[{"name":"br0"},{"name":"eth0","sandbox":"/run/netns/refuse"}],"ips":[{"address":"10.9.0.2/24","interface":1}]}`

// valid has a configuration for each plugin that it would accept, without the head.
var valid = map[string]string{
	"bandwidth":   `"ingressRate":8000000,"ingressBurst":80000,"prevResult":` + prev,
	"bridge":      `"bridge":"refuse0","ipam":{"type":"host-local","subnet":"10.9.0.0/24"}`,
	"dhcp":        `"ipam":{"type":"dhcp","daemonSocketPath":"/nonexistent/dhcp.sock"}`,
	"dummy":       `"ipam":{"type":"host-local","subnet":"10.9.0.0/24"}`,
	"firewall":    `"prevResult":` + prev,
	"host-device": `"device":"refuse2","ipam":{"type":"host-local","subnet":"10.9.0.0/24"}`,
	"host-local":  `"ipam":{"type":"host-local","subnet":"10.9.0.0/24"}`,
	"ipvlan":      `"master":"refuse1","ipam":{"type":"host-local","subnet":"10.9.0.0/24"}`,
	"loopback":    `"x":1`,
	"macvlan":     `"master":"refuse1","ipam":{"type":"host-local","subnet":"10.9.0.0/24"}`,
	"networks":    `"prevResult":` + prev,
	"patchbay":    `"plugins":[{"type":"bridge","bridge":"refuse0","ipam":{"type":"host-local","subnet":"10.9.0.0/24"}}]`,
	"policy":      `"namespace":"shop","prevResult":` + prev,
	"portmap":     `"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80}]},"prevResult":` + prev,
	"ptp":         `"ipam":{"type":"host-local","subnet":"10.9.0.0/24"}`,
	"sbr":         `"x":1,"prevResult":` + prev,
	"static":      `"ipam":{"type":"static","addresses":[{"address":"10.9.0.2/24"}]}`,
	"tap":         `"mtu":1400,"ipam":{"type":"host-local","subnet":"10.9.0.0/24"}`,
	"tuning":      `"mtu":1400,"prevResult":` + prev,
	"vlan":        `"master":"refuse1","vlanId":5,"ipam":{"type":"host-local","subnet":"10.9.0.0/24"}`,
	"vrf":         `"vrfname":"blue","prevResult":` + prev,
	"wrap":        `"plugin":{"type":"bridge","bridge":"refuse0","ipam":{"type":"host-local","subnet":"10.9.0.0/24"}}`,
}

// conf adds a head to fields.
func conf(fields string) string { return `{"cniVersion":"1.0.0","name":"refuse",` + fields + `}` }

// accepted returns a configuration that a plugin accepts.
func accepted(t *testing.T, pluginType string) string {
	t.Helper()
	fields := valid[pluginType]
	if fields == "" {
		t.Fatalf("valid in test/refuse/refuse_test.go has no row for plugin %s: add one with fields that it accepts, such as %q: `\"mtu\":1400`", pluginType, pluginType)
	}
	return conf(fields)
}

// refusal is one bad input to ADD.
type refusal struct {
	about string
	bad   func(c *spec.Call)
	code  spec.Code
	msg   string
}

// hold calls ADD with every refusal and checks the code, the message and that the node is
// untouched.
func hold(t *testing.T, pluginType, ns, good string, table []refusal) {
	t.Helper()
	runtime.LockOSThread() // /proc/thread-self is the namespace of the test
	defer runtime.UnlockOSThread()
	before := leak.Must(t)
	for _, r := range table {
		c := call(spec.Add, ns, good)
		r.bad(c)
		_, _, err := run(pluginType, c)
		if err == nil || spec.ErrorCode(err) != r.code || !strings.Contains(err.Error(), r.msg) {
			t.Errorf("%s: %s: code %d, %v; want code %d, %q", pluginType, r.about, spec.ErrorCode(err), err, r.code, r.msg)
		}
		if left := leak.Must(t).Beyond(before); len(left) > 0 {
			t.Fatalf("%s: %s: left\n%s", pluginType, r.about, left)
		}
	}
}

func field(about, fields string, code spec.Code, msg string) refusal {
	return refusal{about, func(c *spec.Call) { c.Config = []byte(conf(fields)) }, code, msg}
}

// TestEnvelope checks the calls that every plugin refuses.
func TestEnvelope(t *testing.T) {
	ns := nettest.NewNS(t, "refuse")
	var table []refusal
	for id, msg := range map[string]string{
		"": "required env variables [CNI_CONTAINERID] missing", "..": "invalid characters in containerID", "../x": "invalid characters in containerID",
		"a/../../b": "invalid characters in containerID", "a\x00b": "invalid characters in containerID", strings.Repeat("x", 300): "containerID is too long",
	} {
		table = append(table, refusal{fmt.Sprintf("id %.20q", id), func(c *spec.Call) { c.ContainerID = id }, spec.CodeInvalidEnvironment, msg})
	}
	for name, msg := range map[string]string{
		"": "required env variables [CNI_IFNAME] missing", "..": "interface name is . or ..", "a/b": "interface name contains / or :",
		"eth0:1": "interface name contains / or :", "a b": "interface name contains / or :", "a\x00": "interface name contains / or :", "sixteen-letters-": "interface name is too long",
	} {
		table = append(table, refusal{fmt.Sprintf("interface %q", name), func(c *spec.Call) { c.IfName = name }, spec.CodeInvalidEnvironment, msg})
	}
	var places []refusal // IPAM plugins except dhcp do not use the namespace
	for path, msg := range map[string]string{"/nonexistent": "failed to open netns", "/etc/passwd": "failed to open netns", "/proc/thread-self/ns/net": "plugin's netns and netns from CNI_NETNS should not be the same"} {
		places = append(places, refusal{"namespace " + path, func(c *spec.Call) { c.NetNS = path }, spec.CodeInvalidNetNS, msg})
	}
	for text, want := range map[string]refusal{
		``: {code: 6, msg: "failed to load netconf: "}, `{`: {code: 6, msg: "failed to load netconf: "}, `[]`: {code: 6, msg: "failed to load netconf: "},
		`null`: {code: 7, msg: "missing network name"}, `{"cniVersion":"1.0.0"}`: {code: 7, msg: "missing network name"},
		`{"cniVersion":"1.0.0","name":1}`:                                                 {code: 6, msg: "failed to load netconf: "},
		`{"cniVersion":"1.0.0","name":"../x"}`:                                            {code: 7, msg: "invalid characters found in network name"},
		`{"cniVersion":"1.0.0","name":"a\u0000b"}`:                                        {code: 7, msg: "invalid characters found in network name"},
		`{"cniVersion":"1.0.0","name":"n","ipam":"host"}`:                                 {code: 6, msg: "failed to load netconf: "},
		`{"cniVersion":"9.9.9","name":"n"}`:                                               {code: 1, msg: "incompatible CNI versions"},
		`{"cniVersion":"one","name":"n"}`:                                                 {code: 1, msg: "incompatible CNI versions"},
		`{"cniVersion":"1.0.0","name":"n","prevResult":"x"}`:                              {code: 6, msg: "could not parse prevResult"},
		`{"cniVersion":"1.0.0","name":"n","prevResult":[1,2]}`:                            {code: 6, msg: "could not parse prevResult"},
		`{"cniVersion":"1.0.0","name":"n","prevResult":{"ips":[{"address":"10.0.0.1"}]}}`: {code: 6, msg: "could not parse prevResult"},
		`{"cniVersion":"1.0.0","name":"` + strings.Repeat("n", 300) + `"}`:                {code: 7, msg: "network name is too long"},
	} {
		table = append(table, refusal{fmt.Sprintf("configuration %.80q", text), func(c *spec.Call) { c.Config = []byte(text) }, want.code, want.msg})
	}
	for _, p := range all.Plugins() {
		refused := table
		if p.Kind != plugin.IPAM || p.Name == "dhcp" {
			refused = slices.Concat(table, places)
		}
		t.Run(p.Name, func(t *testing.T) { hold(t, p.Name, ns, accepted(t, p.Name), some(refused)) })
	}
}

// some returns a random part of a list with -short. Refusals do not depend on the kernel, and an
// emulated machine is slow.
func some[T any](list []T) []T {
	if !testing.Short() {
		return list
	}
	list = slices.Clone(list)
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list[:len(list)/6]
}

// TestConfigurations checks the reference's refusals, with its messages, and ours.
func TestConfigurations(t *testing.T) {
	ns := nettest.NewNS(t, "refuse")
	args := func(s string) refusal {
		return refusal{"CNI_ARGS " + s, func(c *spec.Call) { c.Args = s }, spec.CodeInvalidEnvironment, "ARGS: invalid pair"}
	}
	ports := func(p string) string { return `"runtimeConfig":{"portMappings":[` + p + `]},"prevResult":` + prev }
	for name, table := range map[string][]refusal{
		"bandwidth": {
			field("rate alone", `"ingressRate":8,"prevResult":`+prev, 7, "if rate is set, burst must also be set"),
			field("burst alone", `"egressBurst":8,"prevResult":`+prev, 7, "if burst is set, rate must also be set"),
			field("4 GiB", `"egressRate":8,"egressBurst":34359738368,"prevResult":`+prev, 7, "burst cannot be more than 4GB"),
			field("first in the chain", `"ingressRate":8,"ingressBurst":8`, 7, "must be called as chained plugin"),
			field("negative", `"ingressRate":-1`, 6, "failed to load netconf"),
		},
		"bridge": {
			args("IP"), args("MAC=a=b"),
			field("mac", `"runtimeConfig":{"mac":"$(id)"}`, 7, "invalid mac"),
			field("bridge", `"bridge":"../../x"`, 7, "invalid bridge name"),
			field("IPAM type", `"bridge":"refuse0","ipam":{"type":"../../bin/sh"}`, 7, "invalid plugin name"),
			field("both modes", `"hairpinMode":true,"promiscMode":true`, 7, "cannot set hairpin mode and promiscuous mode at the same time"),
			field("VLAN", `"vlan":4095`, 7, "invalid VLAN ID 4095 (must be between 0 and 4094)"),
			field("trunk", `"vlanTrunk":[{"minID":9,"maxID":1}]`, 7, "minID is greater than maxID in trunk parameter"),
			field("trunk id", `"vlanTrunk":[{"id":4095}]`, 7, "incorrect trunk id parameter"),
			field("IPAM and no interface", `"disableContainerInterface":true,"ipam":{"type":"host-local"}`, 7, "cannot use IPAM when DisableContainerInterface flag is set"),
		},
		"dhcp": {
			field("no ipam", `"x":1`, 7, "IPAM config missing 'ipam' key"),
			field("no keeper", `"ipam":{"daemonSocketPath":"/nonexistent/dhcp.sock"}`, 50, "error dialing DHCP daemon: "),
			field("an unknown option", `"ipam":{"provide":[{"option":"tea","value":"x"}]}`, 7, `Can not parse option "tea"`),
			field("a long value", `"ipam":{"provide":[{"option":"12","value":"`+strings.Repeat("x", 256)+`"}]}`, 7, `value too long for option "12"`),
			field("nothing to request", `"ipam":{"dhcpv4":false}`, 7, "there is nothing to request"),
			field("a metric", `"ipam":{"priority":-1}`, 7, "invalid priority -1"),
		},
		"firewall": {
			field("policy", `"ingressPolicy":"x","prevResult":`+prev, 7, `unknown ingress policy: "x"`),
			field("no result", `"ingressPolicy":"open"`, 7, "missing prevResult from earlier plugin"),
			field("chain", `"iptablesAdminChainName":"a; reboot","prevResult":`+prev, 7, "invalid iptablesAdminChainName"),
			field("zone", `"firewalldZone":"a b","prevResult":`+prev, 7, "invalid firewalldZone"),
		},
		"host-local": {
			args("IP"),
			field("no ipam", `"x":1`, 7, "IPAM config missing 'ipam' key"),
			field("no ranges", `"ipam":{}`, 7, "no IP ranges specified"),
			field("too small", `"ipam":{"subnet":"10.9.0.0/31"}`, 7, "too small to allocate from"),
			field("host bits", `"ipam":{"subnet":"10.9.0.1/24"}`, 7, "has host bits set"),
			field("start", `"ipam":{"subnet":"10.9.0.0/24","rangeStart":"10.8.0.1"}`, 7, "RangeStart 10.8.0.1 not in network"),
			field("end", `"ipam":{"subnet":"10.9.0.0/24","rangeEnd":"10.8.0.1"}`, 7, "RangeEnd 10.8.0.1 not in network"),
			field("overlap", `"ipam":{"ranges":[[{"subnet":"10.9.0.0/24"}],[{"subnet":"10.9.0.0/25"}]]}`, 7, "overlaps with"),
			field("families", `"ipam":{"ranges":[[{"subnet":"10.9.0.0/24"},{"subnet":"fd00::/64"}]]}`, 7, "mixed address families"),
			field("wanted", `"ipam":{"subnet":"10.9.0.0/24"},"runtimeConfig":{"ips":["x"]}`, 7, "cannot understand ip"),
		},
		"patchbay": {
			field("no plugins", `"plugins":[]`, 7, "no plugins in list"),
			field("itself", `"plugins":[{"type":"patchbay"}]`, 7, "cannot be a member of another one"),
			field("a path", `"plugins":[{"type":"/bin/sh"}]`, 7, "invalid plugin name"),
			field("no type", `"plugins":[{}]`, 7, "missing 'type'"),
			field("no object", `"plugins":["bridge"]`, 6, "error parsing configuration"),
		},
		"portmap": {
			field("host port", ports(`{"hostPort":0,"containerPort":80}`), 7, "Invalid host port number: 0"),
			field("container port", ports(`{"hostPort":80,"containerPort":70000}`), 7, "Invalid container port number: 70000"),
			field("protocol", ports(`{"hostPort":80,"containerPort":80,"protocol":"icmp"}`), 7, "Invalid protocol"),
			field("host address", ports(`{"hostPort":80,"containerPort":80,"hostIP":"x"}`), 7, "Invalid host IP"),
			field("::1", ports(`{"hostPort":80,"containerPort":80,"hostIP":"::1"}`), 2, "unsupported hostIP"),
			field("bit", `"markMasqBit":32,`+ports(""), 7, "MasqMarkBit must be between 0 and 31"),
			field("bit and chain", `"markMasqBit":3,"externalSetMarkChain":"X",`+ports(""), 7, "Cannot specify externalSetMarkChain and markMasqBit"),
			field("backend", `"backend":"x",`+ports(""), 7, `unrecognized backend "x"`),
			field("first in the chain", `"runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":80}]}`, 7, "must be called as chained plugin"),
		},
		"ptp": {
			field("no IPAM", `"mtu":1400`, 7, "no plugin name provided"),
			field("MTU", `"mtu":-1`, 7, "invalid MTU -1"),
			field("backend", `"ipMasqBackend":"x"`, 7, "unknown ipmasq backend"),
		},
		"sbr": {
			field("no result", `"table":7`, 7, "must be called as chained plugin"),
			field("table", `"table":0,"prevResult":`+prev, 7, "invalid table 0"),
			field("two gateways", `"gateways":["10.9.0.1","10.9.0.2"],"prevResult":`+prev, 7, "one address of IPv4 and one of IPv6 at most"),
			field("gateway", `"gateways":["x"],"prevResult":`+prev, 6, "failed to load netconf"),
			field("gateway and table", `"table":7,"gateways":["10.9.0.1"],"prevResult":`+prev, 7, "cannot be set with table 7"),
			field("no address", `"prevResult":{"cniVersion":"1.0.0","interfaces":[{"name":"eth0"}]}`, 7, "No IP addresses supplied on interface: eth0"),
			field("no interface", `"prevResult":`+prev, 999, "Cannot find network interface eth0"),
		},
		"dummy": {
			field("no IPAM", `"x":1`, 7, "dummy interface requires an IPAM configuration"),
			field("IPAM type", `"ipam":{"type":"../../bin/sh"}`, 7, "invalid plugin name"),
		},
		"host-device": {
			field("nothing", `"x":1`, 7, `specify either "device", "hwaddr", "kernelpath" or "pciBusID"`),
			field("device", `"device":"nosuch"`, 7, "failed to find host device: find link nosuch"),
			field("hwaddr", `"hwaddr":"x"`, 7, `failed to parse MAC address "x"`),
			field("nobody's hwaddr", `"hwaddr":"02:00:00:00:99:99"`, 7, "failed to find physical interface"),
			field("kernelpath", `"kernelpath":"devices/x"`, 7, "must be absolute and begin with /sys/devices/"),
			field("kernelpath that leads out", `"kernelpath":"/sys/devices/../../etc"`, 7, "must be absolute and begin with /sys/devices/"),
			field("kernelpath of nothing", `"kernelpath":"/sys/devices/nosuch"`, 7, "failed to read directory /sys/devices/nosuch/net"),
			field("no PCI device", `"pciBusID":"ffff:ff:1f.7"`, 7, "error with host device: "),
			field("a PCI path", `"pciBusID":"../../devices"`, 7, `invalid device id "../../devices"`),
			field("deviceID", `"runtimeConfig":{"deviceID":"nosuch"}`, 7, "runtime config DeviceID nosuch not found or unsupported"),
			field("a deviceID path", `"runtimeConfig":{"deviceID":".."}`, 7, `invalid device id ".."`),
			field("the loopback", `"device":"lo"`, 999, "failed to move link"),
		},
		"static": {
			args("IP"),
			field("address", `"ipam":{"addresses":[{"address":"10.9.0.2"}]}`, 7, "the 'address' field is expected to be in CIDR notation, got: '10.9.0.2'"),
			field("ips", `"ipam":{},"runtimeConfig":{"ips":["x"]}`, 7, "an entry in the 'ips' field is NOT in CIDR notation, got: 'x'"),
			field("gateway", `"ipam":{"addresses":[{"address":"10.9.0.2/24","gateway":"x"}]}`, 7, "invalid address 0"),
		},
		"tap": {
			args("MAC"),
			field("mac", `"mac":"$(id)"`, 7, "for MAC addr"),
			field("multicast mac", `"runtimeConfig":{"mac":"01:00:5e:00:00:01"}`, 7, "for MAC addr"),
			field("MTU", `"mtu":-1`, 7, "invalid MTU -1"),
			field("owner", `"owner":-1`, 6, "failed to load netconf"),
			field("bridge", `"bridge":"../../x"`, 7, "invalid bridge name"),
			field("no bridge", `"bridge":"nosuch"`, 999, "failed to get bridge nosuch"),
			field("SELinux", `"selinuxContext":"system_u:system_r:container_t:s0"`, 7, "SELinux is not enabled"),
			field("IPAM type", `"ipam":{"type":"../../bin/sh"}`, 7, "invalid plugin name"),
		},
		"tuning": {
			args("MAC"),
			field("outside net", `"sysctl":{"kernel.pid_max":"1"},"prevResult":`+prev, 7, "invalid net sysctl key"),
			field("a path", `"sysctl":{"net/../kernel/pid_max":"1"},"prevResult":`+prev, 7, "invalid net sysctl key"),
			field("twice", `"sysctl":{"net.a":"1","net.a":"2"},"prevResult":`+prev, 6, "duplicated sysctl keys are not allowed"),
			field("no result", `"mtu":1400`, 7, "Required prevResult missing"),
			field("mac", `"mac":"x","prevResult":`+prev, 7, "for MAC addr"),
		},
		"vrf": {
			field("no name", `"prevResult":`+prev, 7, "configuration is expected to have a valid vrf name"),
			field("a path", `"vrfname":"../x","prevResult":`+prev, 7, "configuration is expected to have a valid vrf name"),
			field("too long", `"vrfname":"sixteen-letters-","prevResult":`+prev, 7, "configuration is expected to have a valid vrf name"),
			field("the interface", `"vrfname":"eth0","prevResult":`+prev, 7, "cannot have the name of the interface"),
			field("no result", `"vrfname":"blue"`, 7, "missing prevResult from earlier plugin"),
			field("table", `"vrfname":"blue","table":-1,"prevResult":`+prev, 6, "failed to load netconf"),
			field("not a VRF", `"vrfname":"lo","prevResult":`+prev, 999, "Netlink lo is not a VRF"),
		},
		"wrap": {
			field("no plugin", `"timeout":"1s"`, 7, "no plugin to wrap"),
			field("a path", `"plugin":{"type":"/bin/sh"}`, 7, "invalid plugin name"),
			field("no object", `"plugin":"bridge"`, 6, "error parsing configuration"),
			field("a shell command", `"plugin":{"type":"bridge"},"around":{"ADD":{"before":[{"argv":["rm -rf"]}]}}`, 7, "must begin with the absolute path of a program"),
			field("no program", `"plugin":{"type":"bridge"},"around":{"ADD":{"before":[{}]}}`, 7, "must begin with the absolute path of a program"),
			field("a way around", `"plugin":{"type":"bridge"},"around":{"ADD":{"before":[{"argv":["/bin/../bin/sh"]}]}}`, 7, "must begin with the absolute path of a program"),
			field("verb", `"plugin":{"type":"bridge"},"around":{"add":{}}`, 7, "unknown verb \"add\" in around"),
			field("output", `"plugin":{"type":"bridge"},"around":{"ADD":{"before":[{"argv":["/bin/true"],"output":"json"}]}}`, 7, "invalid output \"json\""),
			field("output of DEL", `"plugin":{"type":"bridge"},"around":{"DEL":{"after":[{"argv":["/bin/true"],"output":"merge"}]}}`, 7, "DEL has no result"),
			field("timeout", `"plugin":{"type":"bridge"},"timeout":"30"`, 7, "invalid timeout \"30\""),
			field("retries", `"plugin":{"type":"bridge"},"retry":{"times":11}`, 7, "invalid retry.times 11"),
			field("log", `"plugin":{"type":"bridge"},"log":"../x"`, 7, "invalid log"),
			field("merge", `"plugin":{"type":"bridge"},"config":{"merge":[]}`, 7, "invalid patch of config: merge must be an object"),
			field("patch", `"plugin":{"type":"bridge"},"result":{"patch":[{"op":"x","path":"/a"}]}`, 7, "invalid patch of result"),
		},
	} {
		t.Run(name, func(t *testing.T) { hold(t, name, ns, accepted(t, name), table) })
	}
}
