// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Resolver is an example of a plugin in 30 lines. It is the last plugin of a chain, and sets the DNS of the result: the one
// that the runtime chose for this container (capability dns), or else that of the configuration:
//
//	{"type": "resolver", "capabilities": {"dns": true}, "dns": {"nameservers": ["192.0.2.53"]}}
package main

import (
	"context"
	"os"

	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Conf is the configuration.
type Conf struct {
	DNS           spec.DNS          `json:"dns"`
	RuntimeConfig spec.Capabilities `json:"runtimeConfig"`
}

// resolver makes nothing, so it needs only ADD: the SDK answers all other verbs.
var resolver = plugin.Plugin{
	Name: "resolver", Kind: plugin.Chained, About: "sets the DNS of a chain's result", MinVersion: "0.3.0",
	Capabilities: []string{"dns"}, NoPrev: plugin.NoPrev{Add: "must be called as chained plugin"},
	Conf: func() any { return new(Conf) }, Add: add,
}

func main() { os.Exit(plugin.Main(&resolver)) }

func add(_ context.Context, r *plugin.Request) (*spec.Result, error) {
	c, result := plugin.ConfOf[Conf](r), r.Prev()
	result.DNS = c.DNS
	if d := c.RuntimeConfig.DNS; len(d.Servers) > 0 {
		result.DNS = spec.DNS{Nameservers: d.Servers, Search: d.Searches, Options: d.Options}
	}
	return result, nil
}
