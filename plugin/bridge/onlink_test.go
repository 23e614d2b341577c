// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"fmt"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/static"
	"github.com/patchbay-net/patchbay/spec"
)

// What is valid, the kernel takes: an IPv4 gateway behind a route without a gateway only if that route has the scope
// of the link, an IPv6 gateway always.
func TestGatewayBehindAnOnLinkRoute(t *testing.T) {
	w := newWorld(t)
	for i, c := range []struct {
		address, gateway, all, scope string
		valid                        bool
	}{
		{"10.9.0.5/24", "10.99.0.1", "0.0.0.0/0", "", false},
		{"10.9.0.5/24", "10.99.0.1", "0.0.0.0/0", `, "scope": 0`, false},
		{"10.9.0.5/24", "10.99.0.1", "0.0.0.0/0", `, "scope": 253`, true},
		{"fd09::5/64", "fd99::1", "::/0", "", true},
	} {
		bits := map[bool]int{true: 32, false: 128}[c.all == "0.0.0.0/0"]
		p := w.Pod(fmt.Sprint("gw", i), fmt.Sprintf(`"bridge": "tbr0", "ipam": {"type": "static", "addresses": [{"address": %q}],
			"routes": [{"dst": "%s/%d"%s}, {"dst": %q, "gw": %q}]}`, c.address, c.gateway, bits, c.scope, c.all, c.gateway))
		s := plugin.NewSession([]*plugin.Plugin{&Plugin, &static.Plugin})
		call := p.Call
		call.Config = []byte("{" + p.Conf + "}")
		_, err := s.Validate("bridge", &call, plugin.InList{First: true})
		if (err == nil) != c.valid {
			t.Errorf("%+v: validate says %v", c, err)
		}
		if err := p.Do(spec.Add); (err == nil) != c.valid {
			t.Errorf("%+v: ADD says %v", c, err)
		}
		endpointtest.Must(t, p.Do(spec.Del))
	}
}
