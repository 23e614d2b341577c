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
	checked.Conf = merge(full.Conf, `{"bridge": "pbcni1", "macspoofchk": true, "portIsolation": true, "hairpinMode": true, "mtu": 1400}`)
	layer2 := full
	layer2.Name, layer2.L2, layer2.Refused = "layer2", true, nil
	layer2.Conf = merge(full.Conf, `{"bridge": "pbcni2", "ipam": {}, "isDefaultGateway": false, "ipMasq": false}`)
	var cases []plugintest.Case
	for _, s := range []conformance.Subject{full, checked, layer2} {
		cases = append(cases, plugintest.Case{Subject: s, Delegates: []*plugin.Plugin{&hostlocal.Plugin}})
	}
	plugintest.Run(t, &Plugin, cases...)
}

// merge returns base with the keys of a JSON object over it.
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
