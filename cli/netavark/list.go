// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netavark

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cli/netfile"
)

// declares reports whether a plugin of a network declares a capability.
func declares(list *chain.List, capability string) bool {
	return slices.ContainsFunc(list.Plugins, func(p chain.Plugin) bool { return p.Capabilities[capability] })
}

// publishing returns a network that publishes ports. To a network without a plugin for ports, it adds portmap, as the
// driver of Docker does. A network for which the host forwards nothing publishes nothing, as with netavark's own
// networks.
func publishing(list *chain.List) (*chain.List, error) {
	if declares(list, portMappings) || netfile.Describe(list).Internal {
		return list, nil
	}
	return changed(list, func(plugins []map[string]any) []map[string]any {
		return append(plugins, map[string]any{"type": "portmap", "capabilities": map[string]bool{portMappings: true}})
	})
}

// withFixedIPs returns a network whose first plugin declares the capability of fixed addresses. CNI_ARGS can hold
// only one fixed address, but a reload of a container may ask for one of each family. The plugins that know the
// capability accept it even if the file does not declare it.
func withFixedIPs(list *chain.List) (*chain.List, error) {
	if declares(list, fixedIPs) || len(list.Plugins) == 0 {
		return list, nil
	}
	return changed(list, func(plugins []map[string]any) []map[string]any {
		declared := map[string]bool{fixedIPs: true}
		for capability, is := range list.Plugins[0].Capabilities {
			declared[capability] = is
		}
		plugins[0]["capabilities"] = declared
		return plugins
	})
}

// changed returns a copy of a network with other plugins. The runtime caches the copy, so the DEL has them, too.
func changed(list *chain.List, change func([]map[string]any) []map[string]any) (*chain.List, error) {
	var whole map[string]any
	var part struct{ Plugins []map[string]any }
	for _, into := range []any{&whole, &part} {
		if err := json.Unmarshal(list.Bytes, into); err != nil {
			return nil, fmt.Errorf("CNI network %s: %w", list.Name, err)
		}
	}
	whole["plugins"] = change(part.Plugins)
	data, err := json.Marshal(whole)
	if err != nil {
		return nil, fmt.Errorf("CNI network %s: %w", list.Name, err)
	}
	return chain.ParseList(data)
}
