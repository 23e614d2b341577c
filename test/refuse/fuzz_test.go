// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package refuse

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/all"
	"github.com/patchbay-net/patchbay/spec"
)

// No configuration makes a plugin panic. The ADD is a dry one: it decodes, validates,
// compiles and reads the node, and changes nothing.
func FuzzConfiguration(f *testing.F) {
	ns := nettest.NewNS(f, "fuzz")
	for _, fields := range valid {
		f.Add(fields)
	}
	f.Add(`"bridge":"b","vlan":5,"vlanTrunk":[{"minID":1,"maxID":4094},{"id":7}],"macspoofchk":true,"runtimeConfig":{"mac":"02:00:00:00:00:01"}`)
	f.Add(`"sysctl":{"net.ipv4.ip_forward":"1"},"args":{"cni":{"sysctl":{"a":"b"},"promisc":true}}`)
	f.Add(`"snat":true,"conditionsV4":["!","-d","192.0.2.0/24"],"runtimeConfig":{"portMappings":[{"hostPort":1,"containerPort":2,"hostIP":"::1"}]}`)
	f.Fuzz(func(t *testing.T, fields string) {
		for _, p := range all.Plugins() {
			_, err := dry(p.Name, call(spec.Add, ns, conf(fields)))
			if err != nil && strings.Contains(err.Error(), "panicked") {
				t.Errorf("%s: %v", p.Name, err)
			}
		}
	})
}

func dry(pluginType string, c *spec.Call) ([]byte, error) {
	b := plugin.Builtin{NewSession: func() *plugin.Session {
		s := plugin.NewSession(all.Plugins())
		s.Stderr, s.Dry = io.Discard, func(string) {}
		return s
	}}
	return b.Invoke(context.Background(), pluginType, c)
}
