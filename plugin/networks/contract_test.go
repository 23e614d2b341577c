// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package networks

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"

	"github.com/patchbay-net/patchbay/conformance"
	"github.com/patchbay-net/patchbay/internal/npwg"
	"github.com/patchbay-net/patchbay/internal/npwg/mirror"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/bridge"
	"github.com/patchbay-net/patchbay/plugin/firewall"
	"github.com/patchbay-net/patchbay/plugin/hostlocal"
	"github.com/patchbay-net/patchbay/plugin/plugintest"
	"github.com/patchbay-net/patchbay/plugin/policy"
	"github.com/patchbay-net/patchbay/plugin/portmap"
	"github.com/patchbay-net/patchbay/plugin/ptp"
	"github.com/patchbay-net/patchbay/plugin/static"
	"github.com/patchbay-net/patchbay/plugin/tuning"
)

// delegates are the plugins of the networks in these tests.
var delegates = []*plugin.Plugin{
	&bridge.Plugin, &firewall.Plugin, &hostlocal.Plugin, &policy.Plugin, &portmap.Plugin, &ptp.Plugin, &static.Plugin, &tuning.Plugin,
}

func TestMain(m *testing.M) { plugintest.Main(m, append([]*plugin.Plugin{&Plugin}, delegates...)...) }

// These are two networks: one with a single plugin, and one with elements of the firewall.
const (
	store = `{"cniVersion":"1.1.0","type":"ptp","ipam":{"type":"host-local","subnet":"10.91.0.0/24"}}`
	edge  = `{"cniVersion":"1.1.0","plugins":[
		{"type":"ptp","ipMasq":true,"ipam":{"type":"host-local","subnet":"10.91.1.0/24","routes":[{"dst":"0.0.0.0/0"}]}},
		{"type":"portmap","capabilities":{"portMappings":true}},
		{"type":"firewall"}]}`
)

// define makes the mirror have these definitions: namespace/name, configuration, and so on.
func define(t testing.TB, pairs ...string) {
	t.Helper()
	var s mirror.State
	for i := 0; i < len(pairs); i += 2 {
		list, err := npwg.Parse(pairs[i], "")
		if err != nil {
			t.Fatal(err)
		}
		s.Definitions = append(s.Definitions, npwg.Definition{Namespace: list[0].Namespace, Name: list[0].Name, UID: "u" + list[0].Name, Config: pairs[i+1]})
	}
	if _, err := mirror.Write(paths.Default(), s); err != nil {
		t.Fatal(err)
	}
}

// selecting returns the configuration of a call for a pod with this annotation.
func selecting(annotation string) conformance.Object {
	return conformance.Object{
		"wait":          json.RawMessage(`"0s"`),
		"runtimeConfig": json.RawMessage(fmt.Sprintf(`{"io.kubernetes.cri.pod-annotations":{"k8s.v1.cni.cncf.io/networks":%q}}`, annotation)),
	}
}

// subject is a Go value, and not a file of package conformance, because the plugin needs the definitions on the node.
var subject = conformance.Subject{
	Type: name, Kind: "chained", MinVersion: "0.3.0", Args: podArgs,
	Prev: &conformance.Prev{Addresses: []netip.Prefix{mustPrefix("10.92.0.2/24")}, Gateways: []netip.Addr{netip.MustParseAddr("10.92.0.1")}},
	Conf: selecting("store, infra/edge@edge0"),
	Refused: []conformance.Refusal{
		{About: "an annotation that is not valid", Conf: selecting("Store"), Code: 7, Msg: `"Store" is no name`},
		{About: "a definition that the node does not have", Conf: selecting("nothing"), Code: 11, Msg: "definition shop/nothing: not in the node's mirror"},
		{About: "an interface that the pod has", Conf: selecting("store@eth0"), Code: 7, Msg: "which the pod's default network has"},
		{About: "no annotations of the runtime, and none of the agent", Conf: conformance.Object{"runtimeConfig": json.RawMessage("null")}, Code: 11, Msg: "annotation of pod shop/web-1: not in the node's mirror"},
		{About: "no name of a pod", Args: "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=../x", Code: 4},
		{About: "a relative directory", Conf: conformance.Object{"binDir": json.RawMessage(`"bin"`)}, Code: 7, Msg: "want an absolute path"},
	},
}

func TestContract(t *testing.T) {
	define(t, "shop/store", store, "infra/edge", edge)
	plugintest.Run(t, &Plugin, plugintest.Case{Subject: subject, Delegates: delegates, UndoneByDEL: true})
}
