// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"encoding/json"
	"testing"

	"github.com/patchbay-net/patchbay/conformance"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/hostlocal"
	"github.com/patchbay-net/patchbay/plugin/plugintest"
)

func TestMain(m *testing.M) { plugintest.Main(m, &Plugin, &hostlocal.Plugin) }

func TestContract(t *testing.T) {
	full := plugintest.Subject(t, "bridge")
	checked := full
	checked.Name, checked.Refused = "macspoofchk", nil
	checked.Conf = merge(full.Conf, `{"bridge": "pbcni1", "macspoofchk": true, "portIsolation": true, "hairpinMode": true, "mtu": 1400,
		"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.98.0.0/24"}], [{"subnet": "fd98::/64"}]]}}`) // pbcni0 keeps the gateways of the other ranges
	layer2 := full
	layer2.Name, layer2.L2, layer2.Refused = "layer2", true, nil
	layer2.Conf = merge(full.Conf, `{"bridge": "pbcni2", "ipam": {}, "isDefaultGateway": false, "ipMasq": false}`)
	inner := full
	inner.Name, inner.Refused = "internal", nil
	inner.Conf = merge(full.Conf, `{"bridge": "pbcni3", "internal": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.96.0.0/24"}]]}}`)
	var cases []plugintest.Case
	for _, s := range []conformance.Subject{full, checked, layer2, inner} {
		cases = append(cases, plugintest.Case{Subject: s, Delegates: []*plugin.Plugin{&hostlocal.Plugin}})
	}
	plugintest.Run(t, &Plugin, cases...)
}

// merge returns base with the keys of a JSON object set over it.
func merge(base conformance.Object, over string) conformance.Object {
	out := conformance.Object{}
	for k, v := range base {
		out[k] = v
	}
	if err := json.Unmarshal([]byte(over), &out); err != nil {
		panic(err)
	}
	return out
}
