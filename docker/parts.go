// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"encoding/json"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/spec"
)

// part is one of the lists that a chain is cut into.
type part int

const (
	hold part = iota
	post
	ports
	parts

	lease // not a part, but it has a cache
)

// String is the name of the part's cache.
func (p part) String() string {
	return [...]string{hold: "hold", post: "post", ports: "ports", lease: "lease"}[p]
}

// portMappings is the capability of plugins that publish ports.
const portMappings = "portMappings"

// cut returns one part of a list. The plugins that publish ports are a part of their own:
// the ports follow the default gateway from endpoint to endpoint. With auto a list
// without such a plugin gets our portmap.
func cut(list *chain.List, p part, auto bool) *chain.List {
	out := *list
	out.Plugins = nil
	n := 0
	for i := range list.Plugins {
		var of []chain.Plugin
		for _, m := range members(&list.Plugins[i]) {
			if partOf(n, &m) == p {
				of = append(of, m)
			}
			n++
		}
		out.Plugins = append(out.Plugins, pack(&list.Plugins[i], of)...)
	}
	if p == ports && auto && len(out.Plugins) == 0 {
		out.Plugins = []chain.Plugin{ourPortmap()}
	}
	// The cached copy must be of this part.
	out.Bytes = encodeList(&out)
	return &out
}

func partOf(i int, p *chain.Plugin) part {
	switch {
	case i == 0:
		return hold
	case p.Capabilities[portMappings]:
		return ports
	}
	return post
}

func ourPortmap() chain.Plugin {
	return chain.Plugin{
		Type: "portmap", Capabilities: map[string]bool{portMappings: true},
		Raw: json.RawMessage(`{"type":"portmap","capabilities":{"portMappings":true}}`),
	}
}

// encodeList encodes a list that needs no other file.
func encodeList(l *chain.List) json.RawMessage {
	plugins := make([]json.RawMessage, len(l.Plugins))
	for i, p := range l.Plugins {
		plugins[i] = p.Raw
	}
	return encode(map[string]any{
		"name": l.Name, "cniVersion": l.CNIVersion, "disableCheck": l.DisableCheck, "disableGC": l.DisableGC,
		"loadOnlyInlinedPlugins": true, "plugins": plugins,
	})
}

// publishes says whether a list has a plugin of its own for ports. The first plugin does
// not count: it runs before it is known whether ports are wanted.
func publishes(list *chain.List) bool { return len(cut(list, ports, false).Plugins) > 0 }

// withIPAM returns a list whose first plugin has another ipam section.
func withIPAM(list *chain.List, ipam any) (*chain.List, error) {
	return with(list, "ipam", ipam, theFirst)
}

// moved is a result for the next part: the interface in the holding namespace is in
// another namespace, under another name.
func moved(r *spec.Result, from, to, ifName string) *spec.Result {
	out := r.Clone()
	for i := range out.Interfaces {
		if in := &out.Interfaces[i]; in.Sandbox == from {
			in.Sandbox = to
			if in.Name == holdName {
				in.Name = ifName
			}
		}
	}
	return out
}
