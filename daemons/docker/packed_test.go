// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/internal/packed"
)

// packedNet is a list converted by `patchbay convert`.
const packedNet = `{"cniVersion":"1.1.0","name":"packed","plugins":[{"type":"patchbay","capabilities":{"portMappings":true,"ips":true},"plugins":[
	{"type":"bridge","bridge":"br-t1","isGateway":true,"ipMasq":true,` + dual + `},{"type":"firewall"},
	{"type":"tuning","sysctl":{"net.core.somaxconn":"777"}},{"type":"portmap","capabilities":{"portMappings":true,"other":true}}]}]}`

func TestCutPacked(t *testing.T) {
	plain := `{"type":"first"}`
	for name, c := range map[string]struct {
		plugins string
		want    [parts]string
	}{
		"plain": {plain + `,{"type":"second"},{"type":"third","capabilities":{"portMappings":true}}`,
			[parts]string{"first", "second", "third"}},
		"one list": {`{"type":"patchbay","capabilities":{"portMappings":true},"plugins":[` + plain + `,{"type":"second"},{"type":"third","capabilities":{"portMappings":true}}]}`,
			[parts]string{"patchbay(first)", "patchbay(second)", "patchbay(third)+portMappings"}},
		"the outer plugin has no capability": {`{"type":"patchbay","plugins":[` + plain + `,{"type":"second"},{"type":"third","capabilities":{"portMappings":true}}]}`,
			[parts]string{"patchbay(first)", "patchbay(second third)", ""}},
		"a list in the middle": {plain + `,{"type":"patchbay","plugins":[{"type":"second"},{"type":"third"}]},{"type":"last"}`,
			[parts]string{"first", "patchbay(second third) last", ""}},
		"a list of one": {`{"type":"patchbay","plugins":[` + plain + `]}`, [parts]string{"patchbay(first)", "", ""}},
		"unreadable":    {`{"type":"patchbay","plugins":[7]},{"type":"second"}`, [parts]string{"patchbay", "second", ""}},
	} {
		list, err := chain.ParseList([]byte(`{"name":"n","cniVersion":"1.1.0","plugins":[` + c.plugins + `]}`))
		must(t, err)
		for p, want := range c.want {
			got := cut(list, part(p), false)
			if text := describe(got.Plugins); text != want {
				t.Errorf("%s: %s is %q, want %q", name, part(p), text, want)
			}
			if len(got.Plugins) == 0 {
				continue
			}
			if again, err := chain.ParseList(got.Bytes); err != nil || describe(again.Plugins) != want {
				t.Errorf("%s: %s is not what is cached: %s %v", name, part(p), got.Bytes, err)
			}
		}
	}
}

func describe(list []chain.Plugin) string {
	var out []string
	for i := range list {
		text := list[i].Type
		if of, err := unpack(&list[i]); text == packed.Type && err == nil {
			text += "(" + describe(of) + ")"
			if list[i].Capabilities[portMappings] {
				text += "+portMappings"
			}
			text = strings.ReplaceAll(text, "+portMappings)", ")")
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

// The members of a packed plugin, the only one of its list, run in their parts.
func TestPacked(t *testing.T) {
	both(t, func(t *testing.T, old bool) {
		n := newNode(t, packedNet)
		n.old = old
		x := n.ipamNetwork("packed")
		const mac = "02:42:00:00:00:01"
		v4, err := x.address(0, mac, "10.91.0.77")
		must(t, err)
		v6, err := x.address(1, mac, "")
		must(t, err)
		a := n.mustStart(run{network: x.id, iface: cnm.Interface{Address: v4, AddressIPv6: v6, MacAddress: mac}, ports: []cnm.PortBinding{tcp(80, 8080, 8080)}})
		b := n.mustStart(run{network: n.network("packed")})
		if got, err := conn(t, a.key).Sysctl("net/core/somaxconn"); !old && (got != "777" || err != nil) {
			t.Errorf("somaxconn is %q %v", got, err)
		}
		if err := b.reaches(a, v6.Addr()); err != nil || len(n.published(a)) != 1 {
			t.Errorf("%v %v", err, n.published(a))
		}
		b.stop(true)
		a.stop(false)
		x.release(0, v4)
		x.release(1, v6)
	})
}

// When the network is created, a list that cannot be cut is refused.
func TestPackedRefused(t *testing.T) {
	n := newNode(t)
	for text, want := range map[string]string{`[]`: "has no plugins", `[{"type":"../x"}]`: "../x", `7`: "error parsing configuration"} {
		conf := `{"cniVersion":"1.1.0","name":"x","plugins":[{"type":"patchbay","plugins":` + text + `}]}`
		if _, err := n.createNetwork(map[string]string{optConf: conf}, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
