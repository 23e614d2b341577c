// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package lightjson_test

import (
	"encoding/json"
	"testing"

	"github.com/patchbay-net/patchbay/internal/lightjson"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin/bridge"
	"github.com/patchbay-net/patchbay/plugin/firewall"
	"github.com/patchbay-net/patchbay/plugin/hostlocal"
	"github.com/patchbay-net/patchbay/plugin/portmap"
	"github.com/patchbay-net/patchbay/plugin/ptp"
	"github.com/patchbay-net/patchbay/spec"
)

const (
	head = `{"cniVersion": "1.0.0", "name": "pods", "type": "x", "capabilities": {"portMappings": true}, "dns": {},
		"runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": ""}]},
		"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}, `
	result = `{"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "mac": "00:11:22:33:44:55", "sandbox": "/run/netns/x"}],
		"ips": [{"interface": 0, "address": "10.1.0.5/16", "gateway": "10.1.0.1"}], "routes": [{"dst": "0.0.0.0/0"}], "dns": {}}`
)

// What a call reads and writes needs no encoding/json. Otherwise this package would only cost time.
func TestCommon(t *testing.T) {
	for _, c := range []struct {
		text   string
		into   any
		writes bool // a plugin writes no configuration
	}{
		{head + `"prevResult": ` + result + `}`, new(spec.Conf), false},
		{head + `"bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true, "mtu": 1450}`, new(bridge.Conf), false},
		{head + `"ipMasq": true, "ipMasqOutside": ["10.0.0.0/8"]}`, new(ptp.Conf), false},
		{head + `"snat": true, "prevResult": ` + result + `}`, new(portmap.Conf), false},
		{head + `"acceptNew": true}`, new(firewall.Conf), false},
		{head + `"x": 1}`, new(hostlocal.Conf), false},
		{result, new(spec.Result), true},
		{`{"cniVersion": "1.1.0", "plugins": [` + head + `"x": 1}]}`, new(map[string]json.RawMessage), true},
		{`{"schema": 1, "plugin": "ptp", "owner": "0123456789abcde", "network": "pods", "containerID": "c", "ifname": "eth0", "netns": "/run/netns/x",
			"netnsMark": {}, "links": ["veth1"], "elements": [{"set": "masqueraded4", "key": "0a010005"}], "shared": ["accept-cni0"]}`, new(record.Record), true},
	} {
		reads, writes := lightjson.Common([]byte(c.text), c.into)
		if !reads || c.writes && !writes {
			t.Errorf("%T: reads %v, writes %v\n%s", c.into, reads, writes, c.text)
		}
	}
}
