// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint_test

import (
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/bridge"
	"github.com/patchbay-net/patchbay/plugin/dummy"
	"github.com/patchbay-net/patchbay/plugin/hostlocal"
	"github.com/patchbay-net/patchbay/plugin/macvlan"
	"github.com/patchbay-net/patchbay/plugin/ptp"
	"github.com/patchbay-net/patchbay/plugin/static"
	"github.com/patchbay-net/patchbay/spec"
)

const (
	pool  = `"ipam": {"type": "host-local", "subnet": "10.9.0.0/24"}`
	fixed = `"ipam": {"type": "static", "addresses": [{"address": "10.9.0.2/24"}]}`
)

// The network's configuration has another plugin, or another IPAM plugin, since the ADD: containerd calls DEL
// with the configuration of now. The DEL removes what the plugin of the ADD made. Without that, the address
// goes to the next container while the first one has it and runs.
func TestDelByAnotherPlugin(t *testing.T) {
	mains := []*plugin.Plugin{&bridge.Plugin, &macvlan.Plugin, &ptp.Plugin}
	for _, before := range mains {
		for _, after := range append(mains, &dummy.Plugin) {
			for name, ipam := range map[string]string{"same": pool, "other": fixed, "no": `"x": 0`} {
				t.Run(before.Name+" "+after.Name+" "+name+" ipam", func(t *testing.T) { delByAnother(t, before, after, ipam) })
			}
		}
	}
}

func delByAnother(t *testing.T, before, after *plugin.Plugin, ipam string) {
	const links = `"bridge": "tbr0", "isGateway": true, "ipMasq": true, "master": "up0", `
	plugins := []*plugin.Plugin{before, &hostlocal.Plugin, &static.Plugin}
	if after != before {
		plugins = append(plugins, after)
	}
	w := endpointtest.New(t, plugins...)
	t.Cleanup(func() { w.Host.Delete("tbr0") })
	w.Master("up0")
	warm := w.Pod("warm", links+pool).Add() // makes what exists once for the network
	clean := leak.Must(t, state()...)
	p := w.Pod("a", links+pool)
	endpointtest.Must(t, p.Do(spec.Add))

	now := *p
	now.Conf = `"cniVersion": "1.1.0", "name": "net", "type": "` + after.Name + `", ` + links + ipam
	endpointtest.Must(t, now.DoBy(t.Context(), after.Name, spec.Del))
	if _, err := p.Conn().Link("eth0"); err == nil {
		t.Error("the container still has its interface")
	}
	leak.NoLeaks(t, clean, state()...)
	endpointtest.Must(t, warm.Do(spec.Check))
}
