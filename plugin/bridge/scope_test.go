// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"fmt"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/hostlocal"
	"github.com/patchbay-net/patchbay/spec"
)

// A route whose scope is that of the link or narrower gets no next hop. Its order does not matter, and validate, ADD
// and CHECK say the same of it.
func TestRouteScopes(t *testing.T) {
	w := newWorld(t)
	const far = `{"dst": "169.254.100.6/32", "scope": 253}`
	const all = `{"dst": "0.0.0.0/0", "gw": "169.254.100.6"}`
	for i, c := range []struct {
		routes string
		want   string // the first route's next hop and scope, or the error
	}{
		{`{"dst": "10.99.0.0/16"}`, "10.9.0.1 0"},
		{`{"dst": "10.99.0.0/16", "scope": 253}`, "<nil> 253"},
		{`{"dst": "10.99.0.0/16", "scope": 254}`, "<nil> 254"},
		{`{"dst": "10.99.0.0/16", "gw": "0.0.0.0"}`, "<nil> 0"},
		{`{"dst": "10.99.0.0/16", "gw": "0.0.0.0", "scope": 253}`, "<nil> 253"},
		{far + ", " + all, "<nil> 253"},
		{all + ", " + far, "169.254.100.6 0"},
		{`{"dst": "10.99.0.0/16", "gw": "::ffff:10.9.0.9"}`, "10.9.0.9 0"},
		{`{"dst": "10.99.0.0/16", "gw": "::ffff:0.0.0.0"}`, "<nil> 0"},
		{`{"dst": "10.99.0.0/16", "scope": 200}`, "10.9.0.1 200"},
		{`{"dst": "10.99.0.0/16", "scope": 255}`, "scope 255: must be between 0 and 254"},
		{`{"dst": "10.99.0.0/16", "scope": 300}`, "scope 300: must be between 0 and 254"},
		{`{"dst": "10.99.0.0/16", "scope": -1}`, "scope -1: must be between 0 and 254"},
		{`{"dst": "10.99.0.0/16", "gw": "10.9.0.1", "scope": 253}`, "a route of scope 253 is on the link, and cannot have the gateway 10.9.0.1"},
		{`{"dst": "10.99.0.0/16", "priority": 4294967296}`, "priority 4294967296: must be 4294967295 at most"},
		{`{"dst": "10.99.0.0/16", "mtu": 4294967296}`, "mtu 4294967296: must be 4294967295 at most"},
	} {
		p := w.Pod(fmt.Sprint("scope", i), `"bridge": "tbr0", "ipam": {"type": "host-local",
			"subnet": "10.9.0.0/24", "gateway": "10.9.0.1", "routes": [`+c.routes+`]}`)
		s := plugin.NewSession([]*plugin.Plugin{&Plugin, &hostlocal.Plugin})
		call := p.Call
		call.Config = []byte("{" + p.Conf + "}")
		_, validErr := s.Validate("bridge", &call, plugin.InList{First: true})
		err := p.Do(spec.Add)
		switch {
		case validErr != nil && err != nil:
			if !strings.Contains(validErr.Error(), c.want) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: validate says %v, ADD %v; want %s", c.routes, validErr, err, c.want)
			}
		case validErr != nil || err != nil:
			t.Errorf("%s: validate says %v, ADD %v", c.routes, validErr, err)
		default:
			dst := strings.Split(c.routes, `"`)[3]
			if got := made(t, p, dst); got != c.want {
				t.Errorf("%s: %s, want %s", c.routes, got, c.want)
			}
			endpointtest.Must(t, p.Do(spec.Check))
		}
		endpointtest.Must(t, p.Do(spec.Del))
	}
}

// made returns the next hop and the scope of the container's route to a destination.
func made(t *testing.T, p *endpointtest.Pod, dst string) string {
	t.Helper()
	routes, err := p.Conn().RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	endpointtest.Must(t, err)
	for _, r := range routes {
		if r.Dst.String() == dst {
			return fmt.Sprintf("%v %d", r.Gw, r.Scope)
		}
	}
	return "none"
}
