// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmplugin

import (
	"encoding/json"
	"testing"

	"github.com/patchbay-net/patchbay/conformance"
	"github.com/patchbay-net/patchbay/daemons/cnm/cnmipam"
	"github.com/patchbay-net/patchbay/daemons/test/cnmtest"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/hostlocal"
	"github.com/patchbay-net/patchbay/plugin/plugintest"
)

// object decodes a configuration.
func object(t testing.TB, text string) conformance.Object {
	t.Helper()
	var o conformance.Object
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	return o
}

// leaves are the files that stay after DEL, because they belong to the network.
var leaves = []string{"file /var/lib/patchbay/cnm/networks/", "file /var/lib/patchbay/cnm/pools/"}

const dual = `{"type":"cnm-ipam","driver":"contract","pools":[{"subnet":"10.94.0.0/16"},{"subnet":"fd94::/64"}]}`

func TestContract(t *testing.T) {
	d := &cnmtest.Driver{}
	cnmtest.Start(t, "contract", d)
	delegates := []*plugin.Plugin{&cnmipam.Plugin, &hostlocal.Plugin}
	for _, c := range []struct {
		name, conf string
		refused    []conformance.Refusal
	}{
		{"driver-ipam", `{"driver":"contract","ipam":` + dual + `}`, []conformance.Refusal{
			{About: "no driver", Conf: object(t, `{"driver":null}`), Code: 7, Msg: "exactly one of driver, socket and url must be set"},
			{About: "two drivers", Conf: object(t, `{"url":"unix:///x"}`), Code: 7, Msg: "exactly one of driver, socket and url must be set"},
			{About: "a driver outside its directory", Conf: object(t, `{"driver":"../x"}`), Code: 7, Msg: "a name is of letters"},
			{About: "a driver nobody has", Conf: object(t, `{"driver":"nobody"}`), Code: 11, Msg: "plugin not found"},
			{About: "a relative socket", Conf: object(t, `{"driver":null,"socket":"x.sock"}`), Code: 7, Msg: "the path must be absolute"},
			{About: "an unknown scheme", Conf: object(t, `{"driver":null,"url":"ftp://x"}`), Code: 7, Msg: "want unix, tcp, http or https"},
			{About: "dhcp", Conf: object(t, `{"ipam":{"type":"dhcp"}}`), Code: 7, Msg: "works through the interface"},
			{About: "an IPAM plugin outside its directory", Conf: object(t, `{"ipam":{"type":"../../bin/sh"}}`), Code: 7, Msg: "invalid plugin name"},
			{About: "a bad pool", Conf: object(t, `{"ipam":{"type":"cnm-ipam","driver":"contract","subnet":"10.94.0.1/16"}}`), Code: 7, Msg: "invalid subnet"},
			{About: "two pools of a family", Conf: object(t, `{"ipam":{"type":"cnm-ipam","driver":"contract","pools":[{},{}]}}`), Code: 7, Msg: "two pools of one family"},
			{About: "a bad network id", Conf: object(t, `{"networkId":"a/b"}`), Code: 7, Msg: "invalid networkId"},
			{About: "a bad port", Conf: object(t, `{"runtimeConfig":{"portMappings":[{"containerPort":0}]}}`), Code: 7, Msg: "invalid container port"},
			{About: "a bad protocol", Conf: object(t, `{"runtimeConfig":{"portMappings":[{"containerPort":1,"protocol":"icmp"}]}}`), Code: 7, Msg: "unknown protocol"},
			{About: "a bad mac", Conf: object(t, `{"runtimeConfig":{"mac":"$(id)"}}`), Code: 7, Msg: "invalid mac"},
			{About: "a bad address", Conf: object(t, `{"runtimeConfig":{"ips":["10.94.0.300"]}}`), Code: 7, Msg: "cannot understand ip"},
			{About: "an endless timeout", Conf: object(t, `{"timeout":100000}`), Code: 7, Msg: "timeout 100000"},
			{About: "a number as text", Conf: object(t, `{"timeout":"1"}`), Code: 6, Msg: "failed to load netconf"},
		}},
		{"host-local", `{"driver":"contract","ipam":{"type":"host-local","subnet":"10.95.0.0/24","routes":[{"dst":"0.0.0.0/0"}]}}`, nil},
		{"no-ipam", `{"driver":"contract"}`, nil},
	} {
		plugintest.Run(t, &Plugin, plugintest.Case{
			Subject:   conformance.Subject{Name: c.name, Conf: object(t, c.conf), Leaves: leaves, Refused: c.refused, Keep: []string{}},
			Delegates: delegates,
		})
		if n := d.Endpoints(); n > 0 {
			t.Errorf("%s: the driver has %d endpoints left", c.name, n)
		}
	}
}
