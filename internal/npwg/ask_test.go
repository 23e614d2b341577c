// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package npwg

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/lightjson"
	"github.com/patchbay-net/patchbay/spec"
)

func ask(t *testing.T, keys string) *Ask {
	t.Helper()
	list, err := Parse(`[{"name":"a",`+keys+`}]`, "shop")
	if err != nil {
		t.Fatal(err)
	}
	return &list[0].Ask
}

const everything = `"ips":["10.0.0.7/8"],"mac":"02:00:00:00:00:07","infiniband-guid":"c2:11:22:33:44:55:66:77","deviceID":"0000:04:00.5",
	"portMappings":[{"hostPort":80,"containerPort":80}],"bandwidth":{"ingressRate":1}`

// The values that plugins get have the names of CNI's conventions.
func TestRuntimeConfig(t *testing.T) {
	for name, c := range map[string]struct{ keys, want string }{
		"nothing":                   {`"x":1`, `{}`},
		"4.1.2.1.3 to 10":           {everything, `{"bandwidth":{"ingressRate":1},"deviceID":"0000:04:00.5","infinibandGUID":"c2:11:22:33:44:55:66:77","ips":["10.0.0.7/8"],"mac":"02:00:00:00:00:07","portMappings":[{"hostPort":80,"containerPort":80,"protocol":"tcp"}]}`},
		"4.1.2.1.11 ipam-claim":     {`"ipam-claim-reference":"vm.a"`, `{"ipamClaimReference":"vm.a"}`},
		"4.1.2.1.6 args are others": {`"cni-args":{"x":1}`, `{}`},
	} {
		values, err := ask(t, c.keys).Capabilities()
		got, merr := lightjson.Marshal(values)
		if err != nil || merr != nil || string(got) != c.want {
			t.Errorf("%s: %s, %v %v\nwant %s", name, got, err, merr, c.want)
		}
	}
}

func TestCNIArgs(t *testing.T) {
	for _, c := range []struct{ args, keys, want string }{
		{"A=1", `"x":1`, "A=1"},
		{"A=1", `"ips":["10.0.0.7","fd00::7"],"mac":"02:00:00:00:00:07"`, "A=1;IP=10.0.0.7,fd00::7;MAC=02:00:00:00:00:07"},
		{"", `"mac":"02:00:00:00:00:07"`, "MAC=02:00:00:00:00:07"},
	} {
		if got := ask(t, c.keys).CNIArgs(c.args); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
}

// S is the standard's way, M that of Multus.
func TestUnserved(t *testing.T) {
	for name, c := range map[string]struct {
		keys, declared string
		strict         bool
		fails          string
	}{
		"4.1.2.1.3 no capability S":  {keys: `"ips":["10.0.0.7"]`, strict: true, fails: "declares the capability ips"},
		"4.1.2.1.3 no capability M":  {keys: `"ips":["10.0.0.7"]`},
		"4.1.2.1.3 capability S":     {keys: `"ips":["10.0.0.7"]`, declared: "ips", strict: true},
		"4.1.2.1.4 no capability S":  {keys: `"mac":"02:00:00:00:00:07"`, strict: true, fails: "declares the capability mac"},
		"4.1.2.1.4 no capability M":  {keys: `"mac":"02:00:00:00:00:07"`},
		"4.1.2.1.7 no capability":    {keys: `"portMappings":[{"hostPort":80,"containerPort":80}]`, declared: "ips", fails: "declares the capability portMappings"},
		"4.1.2.1.7 capability":       {keys: `"portMappings":[{"hostPort":80,"containerPort":80}]`, declared: "portMappings"},
		"4.1.2.1.8 no capability":    {keys: `"bandwidth":{"ingressRate":1}`, fails: "declares the capability bandwidth"},
		"4.1.2.1.10 no capability":   {keys: `"infiniband-guid":"c2:11:22:33:44:55:66:77"`, fails: "declares the capability infinibandGUID"},
		"4.1.2.1.11 unknown to it S": {keys: `"ipam-claim-reference":"vm.a"`, strict: true},
	} {
		err := ask(t, c.keys).Unserved(map[string]bool{c.declared: true}, c.strict)
		if (err != nil) != (c.fails != "") || err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("%s: %v, want %q", name, err, c.fails)
		}
	}
}

func TestHonoured(t *testing.T) {
	result := &spec.Result{
		Interfaces: []spec.Interface{{Name: "net1", Mac: "02:00:00:00:00:07", Sandbox: "/run/netns/a"}},
		IPs:        []spec.IPConfig{{Address: netip.MustParsePrefix("10.0.0.7/8")}},
	}
	for name, c := range map[string]struct{ keys, fails string }{
		"4.1.2.1.3 result verified":          {keys: `"ips":["10.0.0.7"]`},
		"4.1.2.1.3 with length":              {keys: `"ips":["10.0.0.7/8"]`},
		"4.1.2.1.3 another length":           {keys: `"ips":["10.0.0.7/16"]`, fails: "address 10.0.0.7/16"},
		"4.1.2.1.3 another address":          {keys: `"ips":["10.0.0.7","10.0.0.8"]`, fails: "address 10.0.0.8"},
		"4.1.2.1.4 result verified":          {keys: `"mac":"02:00:00:00:00:07"`},
		"4.1.2.1.4 another hardware address": {keys: `"mac":"02:00:00:00:00:08"`, fails: "asks for mac 02:00:00:00:00:08"},
	} {
		err := ask(t, c.keys).Honoured(result, "net1")
		if (err != nil) != (c.fails != "") || err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("%s: %v, want %q", name, err, c.fails)
		}
	}
}

func TestConfigure(t *testing.T) {
	for name, c := range map[string]struct{ plugin, keys, want string }{
		"nothing":                {`{"type":"x"}`, `"x":1`, `{"type":"x"}`},
		"4.1.2.1.6 passed":       {`{"type":"x"}`, `"cni-args":{"k":[1]}`, `{"args":{"cni":{"k":[1]}},"type":"x"}`},
		"4.1.2.1.6 the pod wins": {`{"type":"x","args":{"cni":{"k":1}}}`, `"cni-args":{"k":2}`, `{"args":{"cni":{"k":2}},"type":"x"}`},
		"4.1.2.1.6 others stay":  {`{"type":"x","args":{"cni":{"a":1},"b":2}}`, `"cni-args":{"k":2}`, `{"args":{"b":2,"cni":{"a":1,"k":2}},"type":"x"}`},
		"a device":               {`{"type":"x"}`, `"deviceID":"0000:04:00.5"`, `{"deviceID":"0000:04:00.5","pciBusID":"0000:04:00.5","type":"x"}`},
	} {
		got, err := Configure(json.RawMessage(c.plugin), ask(t, c.keys))
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %s, %v\nwant %s", name, got, err, c.want)
		}
	}
	if got, err := Configure(json.RawMessage(`{"type":"x","args":7}`), ask(t, `"cni-args":{"k":2}`)); err == nil {
		t.Errorf("args that are no object: %s", got)
	}
}

func TestNamed(t *testing.T) {
	for name, c := range map[string]struct {
		config, want string
		list         bool
	}{
		"3.4.2 injected into a plugin": {config: `{"type":"x"}`, want: `{"name":"a","type":"x"}`},
		"3.4.2 injected into a list":   {config: `{"plugins":[]}`, want: `{"name":"a","plugins":[]}`, list: true},
		"3.4.2 another name stays":     {config: `{"name":"b","type":"x"}`, want: `{"name":"b","type":"x"}`},
	} {
		got, list, err := Named([]byte(c.config), "a")
		if err != nil || string(got) != c.want || list != c.list {
			t.Errorf("%s: %s list %v, %v\nwant %s", name, got, list, err, c.want)
		}
	}
	if _, _, err := Named([]byte(`[]`), "a"); err == nil {
		t.Error("a list of JSON is no configuration")
	}
}

// S is the standard's way, M that of Multus.
func TestGateways(t *testing.T) {
	for name, c := range map[string]struct {
		annotation string
		strict     bool
		want       string
		fails      string
	}{
		"nobody asks":                       {annotation: `[{"name":"a"}]`, want: "null"},
		"4.1.2.1.9 v4":                      {annotation: `[{"name":"a","default-route":["10.0.0.1"]}]`, want: `[{"interface":"net1","addr":"10.0.0.1"}]`},
		"4.1.2.1.9 v6":                      {annotation: `[{"name":"a","default-route":["fd00::1"]}]`, want: `[{"interface":"net1","addr":"fd00::1","ipv6":true}]`},
		"4.1.2.1.9 empty":                   {annotation: `[{"name":"a","default-route":[]}]`, want: `[{"interface":"net1"},{"interface":"net1","ipv6":true}]`},
		"4.1.2.1.9 one per family M":        {annotation: `[{"name":"a","default-route":["10.0.0.1"]},{"name":"b","default-route":["fd00::1"]}]`, want: `[{"interface":"net1","addr":"10.0.0.1"},{"interface":"net2","addr":"fd00::1","ipv6":true}]`},
		"4.1.2.1.9 one per family S":        {annotation: `[{"name":"a","default-route":["10.0.0.1"]},{"name":"b","default-route":["fd00::1"]}]`, strict: true, fails: "both have default-route"},
		"4.1.2.1.9 two of one family":       {annotation: `[{"name":"a","default-route":["10.0.0.1"]},{"name":"b","default-route":["10.1.0.1"]}]`, fails: "both want the default route of IPv4"},
		"4.1.2.1.9 empty and v6":            {annotation: `[{"name":"a","default-route":[]},{"name":"b","default-route":["fd00::1"]}]`, fails: "both want the default route of IPv6"},
		"4.1.2.1.9 two gateways of one net": {annotation: `[{"name":"a","default-route":["10.0.0.1","10.0.0.2"]}]`, fails: "both want the default route of IPv4"},
	} {
		list, err := Parse(c.annotation, "shop")
		if err != nil || Name(list) != nil {
			t.Fatal(name, err)
		}
		got, err := Gateways(list, c.strict)
		text, merr := lightjson.Marshal(got)
		if merr != nil || (err != nil) != (c.fails != "") || err != nil && !strings.Contains(err.Error(), c.fails) || err == nil && string(text) != c.want {
			t.Errorf("%s: %s, %v\nwant %s%s", name, text, err, c.want, c.fails)
		}
	}
}
