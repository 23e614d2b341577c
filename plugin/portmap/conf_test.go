// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// TestRefused lists every refused configuration, with the reference's text where the reference
// has one.
func TestRefused(t *testing.T) {
	one := func(mapping string) string { return ports(mapping) }
	for _, tc := range []struct {
		name, conf, msg string
		code            spec.Code
	}{
		{"no JSON", `{`, "failed to load netconf", spec.CodeDecoding},
		{"a port that is text", one(`{"hostPort": "80", "containerPort": 80}`), "failed to load netconf", spec.CodeDecoding},
		{"host port 0", one(`{"containerPort": 80}`), "Invalid host port number: 0", spec.CodeInvalidConfig},
		{"host port -1", one(`{"hostPort": -1, "containerPort": 80}`), "Invalid host port number: -1", spec.CodeInvalidConfig},
		{"host port 65536", one(`{"hostPort": 65536, "containerPort": 80}`), "Invalid host port number: 65536", spec.CodeInvalidConfig},
		{"container port 0", one(`{"hostPort": 80}`), "Invalid container port number: 0", spec.CodeInvalidConfig},
		{"container port 65536", one(`{"hostPort": 80, "containerPort": 65536}`), "Invalid container port number: 65536", spec.CodeInvalidConfig},
		{"protocol", one(`{"hostPort": 80, "containerPort": 80, "protocol": "icmp"}`), `Invalid protocol: "icmp"`, spec.CodeInvalidConfig},
		{"host IP", one(`{"hostPort": 80, "containerPort": 80, "hostIP": "garbage"}`), `Invalid host IP: "garbage"`, spec.CodeInvalidConfig},
		{"host IP with zone", one(`{"hostPort": 80, "containerPort": 80, "hostIP": "fe80::1%eth0"}`), `Invalid host IP`, spec.CodeInvalidConfig},
		{"host IP with prefix", one(`{"hostPort": 80, "containerPort": 80, "hostIP": "10.0.0.1/8"}`), `Invalid host IP`, spec.CodeInvalidConfig},
		{"::1", one(`{"hostPort": 80, "containerPort": 80, "hostIP": "::1"}`), `unsupported hostIP "::1"`, spec.CodeUnsupportedField},
		{"multicast", one(`{"hostPort": 80, "containerPort": 80, "hostIP": "224.0.0.1"}`), "224.0.0.1 is a broadcast or multicast address", spec.CodeInvalidConfig},
		{"IPv6 multicast", one(`{"hostPort": 80, "containerPort": 80, "hostIP": "ff02::1"}`), "ff02::1 is a broadcast or multicast address", spec.CodeInvalidConfig},
		{"broadcast", one(`{"hostPort": 80, "containerPort": 80, "hostIP": "::ffff:255.255.255.255"}`), "255.255.255.255 is a broadcast or", spec.CodeInvalidConfig},
		{"one port to two", one(`{"hostPort": 80, "containerPort": 80}, {"hostPort": 80, "containerPort": 81}`),
			"host port 80/tcp is mapped twice: 80:80/tcp and 80:81/tcp", spec.CodeInvalidConfig},
		{"one port to two, 0.0.0.0", one(`{"hostPort": 80, "containerPort": 80}, {"hostPort": 80, "containerPort": 81, "hostIP": "0.0.0.0"}`),
			"host port 80/tcp is mapped twice: 80:80/tcp and 0.0.0.0:80:81/tcp", spec.CodeInvalidConfig},
		{"one port to two, ::", one(`{"hostPort": 80, "containerPort": 80, "hostIP": "::"}, {"hostPort": 80, "containerPort": 81}`),
			"host port 80/tcp is mapped twice: [::]:80:80/tcp and 80:81/tcp", spec.CodeInvalidConfig},
		{"mark and chain", `{"markMasqBit": 3, "externalSetMarkChain": "KUBE-MARK-MASQ"}`,
			"Cannot specify externalSetMarkChain and markMasqBit", spec.CodeInvalidConfig},
		{"mark 32", `{"markMasqBit": 32}`, "MasqMarkBit must be between 0 and 31", spec.CodeInvalidConfig},
		{"mark -1", `{"markMasqBit": -1}`, "MasqMarkBit must be between 0 and 31", spec.CodeInvalidConfig},
		{"unknown chain", `{"externalSetMarkChain": "MINE"}`, `unsupported externalSetMarkChain "MINE"`, spec.CodeUnsupportedField},
		{"backend", `{"backend": "ebpf"}`, `unrecognized backend "ebpf"`, spec.CodeInvalidConfig},
		{"empty backend", `{"backend": ""}`, `unrecognized backend ""`, spec.CodeInvalidConfig},
		{"nft conditions for iptables", `{"backend": "iptables", "conditionsV4": ["ip", "saddr", "10.0.0.0/8"]}`,
			"iptables backend was requested but configuration contains nftables-specific options [conditionsV4]", spec.CodeInvalidConfig},
		{"iptables conditions for nftables", `{"backend": "nftables", "conditionsV4": ["-s", "10.0.0.0/8"], "conditionsV6": ["!", "-s", "fd00::/8"]}`,
			"nftables backend was requested but configuration contains iptables-specific options [conditionsV4 conditionsV6]", spec.CodeInvalidConfig},
		{"chain for nftables", `{"backend": "nftables", "externalSetMarkChain": "KUBE-MARK-MASQ"}`,
			"nftables backend was requested but configuration contains iptables-specific options [externalSetMarkChain]", spec.CodeInvalidConfig},
		{"both languages", `{"conditionsV4": ["-s", "10.0.0.0/8"], "conditionsV6": ["ip6", "saddr", "fd00::/8"]}`,
			"iptables backend was requested but configuration contains nftables-specific options [conditionsV6]", spec.CodeInvalidConfig},
		{"a condition nobody knows", ports(webPort, `"conditionsV4": ["-m", "time", "--timestart", "9:00"]`), "not a supported condition", spec.CodeUnsupportedField},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := decode([]byte(tc.conf))
			if err == nil || !strings.Contains(err.Error(), tc.msg) || spec.ErrorCode(err) != tc.code {
				t.Errorf("%v (code %d), want %q (code %d)", err, spec.ErrorCode(err), tc.msg, tc.code)
			}
		})
	}
}

func decode(conf []byte) ([]mapping, error) {
	r := &plugin.Request{Plugin: &Plugin, Network: "net", Call: &spec.Call{Config: conf}}
	_, err := r.Conf()
	return plugin.ConfOf[Conf](r).mappings, err
}

func TestAccepted(t *testing.T) {
	for _, tc := range []struct {
		name, conf string
		want       []string
	}{
		{"nothing", `{}`, nil},
		{"capitals, as containerd sends them", `{"RuntimeConfig": {"PortMappings": [{"HostPort": 80, "ContainerPort": 8080, "Protocol": "TCP", "HostIP": ""}]}}`,
			[]string{"80:8080/tcp"}},
		{"no protocol", ports(`{"hostPort": 80, "containerPort": 80}`), []string{"80:80/tcp"}},
		{"host addresses", ports(`{"hostPort": 1, "containerPort": 2, "protocol": "udp", "hostIP": "::ffff:10.0.0.1"},
			{"hostPort": 1, "containerPort": 2, "protocol": "sctp", "hostIP": "fd00::1"}`), []string{"10.0.0.1:1:2/udp", "[fd00::1]:1:2/sctp"}},
		{"twice the same", ports(webPort + "," + webPort), []string{"8080:80/tcp"}},
		{"one port, two host addresses", ports(`{"hostPort": 1, "containerPort": 2, "hostIP": "10.0.0.1"}, {"hostPort": 1, "containerPort": 3, "hostIP": "10.0.0.2"},
			{"hostPort": 1, "containerPort": 4}`), []string{"10.0.0.1:1:2/tcp", "10.0.0.2:1:3/tcp", "1:4/tcp"}},
		{"one port, one family each", ports(`{"hostPort": 1, "containerPort": 2, "hostIP": "0.0.0.0"}, {"hostPort": 1, "containerPort": 3, "hostIP": "::"}`),
			[]string{"0.0.0.0:1:2/tcp", "[::]:1:3/tcp"}},
		{"once for all", ports(`{"hostPort": 1, "containerPort": 2}, {"hostPort": 1, "containerPort": 2, "hostIP": "0.0.0.0"}`), []string{"1:2/tcp"}},
		{"backends and marks", ports(webPort, `"backend": "iptables"`, `"markMasqBit": 31`, `"conditionsV4": [""]`), []string{"8080:80/tcp"}},
		{"kube-proxy's chain", ports(webPort, `"externalSetMarkChain": "KUBE-MARK-MASQ"`), []string{"8080:80/tcp"}},
		{"nft conditions need no backend", ports(webPort, `"conditionsV4": ["ip", "saddr", "10.0.0.0/8"]`), []string{"8080:80/tcp"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ms, err := decode([]byte(tc.conf))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, m := range ms {
				got = append(got, m.String())
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("%v, want %v", got, tc.want)
			}
		})
	}
}

// The container's addresses are the first of each family on its interface.
func TestContainerAddrs(t *testing.T) {
	zero, one, far := 0, 1, 7
	prefix := netip.MustParsePrefix
	prev := &spec.Result{
		Interfaces: []spec.Interface{{Name: "cni0"}, {Name: "eth0", Sandbox: "/ns"}, {Name: "eth1", Sandbox: "/ns"}},
		IPs: []spec.IPConfig{
			{Address: prefix("10.0.0.1/24"), Interface: &zero},
			{Address: prefix("10.0.0.2/24"), Interface: &one},
			{Address: prefix("10.0.0.3/24"), Interface: &one},
			{Address: prefix("fd00::2/64")},
			{Address: prefix("fd00::3/64"), Interface: &far},
		},
	}
	got := containerAddrs(prev, "eth0")
	if want := []netip.Prefix{prefix("10.0.0.2/24"), prefix("fd00::2/64")}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := containerAddrs(prev, "eth9"); !slices.Equal(got, []netip.Prefix{prefix("fd00::2/64")}) {
		t.Errorf("of another interface: %v", got)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(ports(webPort, `"conditionsV4": ["ip", "saddr", "10.0.0.0/8"]`)))
	f.Add([]byte(`{"runtimeConfig": {"portMappings": [{"hostPort": 1e4, "containerPort": 1, "hostIP": "::ffff:1.2.3.4", "protocol": "Sctp"}]}}`))
	f.Add([]byte(`{"SNAT": false, "masqAll": true, "backend": null, "markMasqBit": null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		ms, err := decode(data)
		for _, m := range ms {
			if err == nil && (m.hostPort == 0 || m.containerPort == 0 || m.String() == "") {
				t.Errorf("accepted %v", m)
			}
		}
	})
}

// The broadcast address of a network of the host is no hostIP either.
func TestBroadcastOfTheHost(t *testing.T) {
	_, web, _ := world(t)
	a := of(web)
	err := a.call(t, spec.Add, ports(`{"hostPort": 80, "containerPort": 80, "hostIP": "10.1.0.255"}`))
	if err == nil || !strings.Contains(err.Error(), "10.1.0.255 is a broadcast or multicast address") || elements(t) != 0 {
		t.Errorf("%v, %d elements", err, elements(t))
	}
	a.must(t, spec.Add, ports(`{"hostPort": 80, "containerPort": 80, "hostIP": "10.1.0.1"}, {"hostPort": 80, "containerPort": 80, "hostIP": "192.0.2.7"}`))
	a.must(t, spec.Del, `{}`)
}
