// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package static

import (
	"fmt"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/plugintest"
	"github.com/patchbay-net/patchbay/spec"
)

func TestMain(m *testing.M) { plugintest.Main(m, &Plugin) }

func TestContract(t *testing.T) {
	plugintest.Run(t, &Plugin, plugintest.Case{Subject: plugintest.Subject(t, "static"), NoFaults: true})
}

func request(conf, args, version string) *plugin.Request {
	return &plugin.Request{Plugin: &Plugin, Call: &spec.Call{Config: []byte(conf), Args: args, IfName: "eth0"}, Version: version,
		Session: plugin.NewSession(nil)}
}

func load(r *plugin.Request) ([]address, error) {
	_, err := r.Conf()
	return plugin.ConfOf[Conf](r).addrs, err
}

// conf has two addresses, of which the first has a gateway, and extra keys.
func conf(extra string) string {
	if extra != "" {
		extra = "," + extra
	}
	return `{"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"},{"address":"fd00::5/64"}]}` + extra + `}`
}

// A prefix that contains everything, or nearly everything, is refused, wherever it comes from.
func TestPrefixesThatCannotBeMeant(t *testing.T) {
	for _, tc := range []struct{ conf, args, refused string }{
		{conf(`"runtimeConfig":{"ips":["172.20.0.5/0"]}`), "", "172.20.0.5/0"},
		{conf(`"args":{"cni":{"ips":["10.9.0.2/7"]}}`), "", "10.9.0.2/7"},
		{conf(""), "IP=fd00::9/7", "fd00::9/7"},
		{`{"ipam":{"type":"static","addresses":[{"address":"::5/0"}]}}`, "", "::5/0"},
		{`{"ipam":{"type":"static","addresses":[{"address":"10.0.0.5/8"},{"address":"fd00::5/8"},{"address":"10.1.0.5/32"}]}}`, "", ""},
	} {
		_, err := load(request(tc.conf, tc.args, "1.1.0"))
		if tc.refused == "" {
			if err != nil {
				t.Error(err)
			}
			continue
		}
		if spec.ErrorCode(err) != spec.CodeInvalidConfig || !strings.Contains(err.Error(), "address "+tc.refused+": a prefix of") {
			t.Errorf("%s: %v", tc.refused, err)
		}
	}
}

func TestSources(t *testing.T) {
	for _, tc := range []struct{ conf, args, want string }{
		{conf(""), "", "10.1.0.5/24 via 10.1.0.1, fd00::5/64"},
		{conf(""), "IP=10.2.0.9/24, 10.3.0.9/24;K8S_POD_NAME=x", "10.1.0.5/24 via 10.1.0.1, fd00::5/64, 10.2.0.9/24, 10.3.0.9/24"},
		{conf(""), "IP=10.2.0.9/24;GATEWAY=10.2.0.1,fd00::1", "10.1.0.5/24 via 10.1.0.1, fd00::5/64 via fd00::1, 10.2.0.9/24 via 10.2.0.1"},
		{conf(`"args":{"cni":{"ips":["10.9.0.2/24"]}}`), "IP=10.2.0.9/24", "10.9.0.2/24"},
		{conf(`"args":{"cni":{"ips":["10.9.0.2/24"]}},"runtimeConfig":{"IPs":["10.8.0.2/24","fd00::8/64"]}`), "", "10.8.0.2/24, fd00::8/64"},
		{`{"ipam":{}}`, "", ""},
	} {
		addrs, err := load(request(tc.conf, tc.args, "1.0.0"))
		if err != nil {
			t.Errorf("%s %s: %v", tc.conf, tc.args, err)
		}
		if got := text(addrs); got != tc.want {
			t.Errorf("%s %s: %s, want %s", tc.conf, tc.args, got, tc.want)
		}
	}
}

func text(addrs []address) string {
	var out []string
	for _, a := range addrs {
		s := a.prefix.String()
		if a.gateway.IsValid() {
			s += " via " + a.gateway.String()
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}

func TestRefused(t *testing.T) {
	for _, tc := range []struct{ conf, args, version, err string }{
		{`{}`, "", "", "IPAM config missing 'ipam' key"},
		{`{"ipam":7}`, "", "", "failed to load netconf: json: cannot unmarshal number into Go struct field Conf.ipam of type static.IPAM"},
		{`{"ipam":{"addresses":[{"address":"10.1.0.5"}]}}`, "", "", "the 'address' field is expected to be in CIDR notation, got: '10.1.0.5'"},
		{`{"ipam":{"addresses":[{"address":"10.1.0.5/24","gateway":"x"}]}}`, "", "", "invalid address 0: invalid IP address: x"},
		{`{"ipam":{"routes":[{"gw":"10.1.0.1"}]}}`, "", "", "invalid route 0: no dst"},
		{conf(""), "IP=10.1.0.7", "", "the 'ip' field is expected to be in CIDR notation, got: '10.1.0.7'"},
		{conf(""), "GATEWAY=10.1.0.1,x", "", "invalid gateway address: x"},
		{conf(""), "IP", "", `ARGS: invalid pair "IP"`},
		{conf(`"args":{"cni":{"ips":["10.9.0.2"]}}`), "", "", "an entry in the 'ips' field is NOT in CIDR notation, got: '10.9.0.2'"},
		{conf(`"runtimeConfig":{"ips":["::ffff:10.9.0.2/95"]}`), "", "", "an entry in the 'ips' field is NOT in CIDR notation, got: '::ffff:10.9.0.2/95'"},
		{conf(""), "IP=10.2.0.9/24", "0.2.0", "CNI version 0.2.0 does not support more than 1 address per family"},
	} {
		if tc.version == "" {
			tc.version = "1.0.0"
		}
		if _, err := load(request(tc.conf, tc.args, tc.version)); err == nil || err.Error() != tc.err {
			t.Errorf("%s %s: %v, want %s", tc.conf, tc.args, err, tc.err)
		}
	}
}

func FuzzLoad(f *testing.F) {
	f.Add(conf(""), "IP=10.2.0.9/24;GATEWAY=10.2.0.1")
	f.Add(conf(`"runtimeConfig":{"ips":["10.8.0.2/24"]}`), "IP=,;GATEWAY=,")
	f.Fuzz(func(t *testing.T, conf, args string) {
		addrs, err := load(request(conf, args, "1.0.0"))
		if err != nil {
			return
		}
		for _, a := range addrs {
			if !a.prefix.IsValid() || fmt.Sprint(a.gateway.Zone()) != "" {
				t.Errorf("%s %s: %v", conf, args, a)
			}
		}
	})
}
