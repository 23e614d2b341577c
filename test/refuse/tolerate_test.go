// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package refuse

import (
	"testing"

	world "github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/spec"
)

// An address in a previous result names a missing interface. We accept what the reference accepts.
func TestInterfaceOutOfRange(t *testing.T) {
	far := 7
	for pluginType, fields := range map[string]string{
		"bandwidth": `"ingressRate":8000000,"ingressBurst":80000`,
		"firewall":  `"backend":"iptables"`,
		"portmap":   `"runtimeConfig":{"portMappings":[{"hostPort":10091,"containerPort":80}]}`,
		"sbr":       `"addSourceHints":true`,
		"tuning":    `"mtu":1400`,
	} {
		t.Run(pluginType, func(t *testing.T) {
			c := world.New(t).Bridge("far0", "10.1.0.1/24").Container("far", "10.1.0.5/24")
			prev := c.Result()
			prev.IPs[0].Interface = &far
			raw, err := prev.Encode("1.0.0")
			must(t, err)
			for _, verb := range []spec.Verb{spec.Add, spec.Check, spec.Del} {
				if _, _, err := run(pluginType, call(verb, c.Path, conf(fields+`,"prevResult":`+string(raw)))); err != nil {
					t.Errorf("%s: %v", verb, err)
				}
			}
		})
	}
}
