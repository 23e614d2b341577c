// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"encoding/json"
	"fmt"
	"maps"

	"github.com/patchbay-net/patchbay/chain"
)

// packed is the plugin whose configuration is a list of plugins, which it runs in one
// process (`patchbay convert`). It is cut into parts like any list; its members in one
// part are still one call.
const packed = "patchbay"

// members are the plugins that a member of a list stands for: itself, or its packed
// plugins. If they cannot be read, the plugin itself will refuse the configuration.
func members(p *chain.Plugin) []chain.Plugin {
	if p.Type == packed {
		if list, err := unpack(p); err == nil {
			return list
		}
	}
	return []chain.Plugin{*p}
}

func unpack(p *chain.Plugin) (list []chain.Plugin, err error) {
	var conf struct {
		Plugins []json.RawMessage `json:"plugins"`
	}
	if err := json.Unmarshal(p.Raw, &conf); err != nil {
		return nil, fmt.Errorf("decode plugin %s: %w", p, err)
	}
	for _, raw := range conf.Plugins {
		m, err := chain.ParsePlugin(raw)
		if err != nil {
			return nil, fmt.Errorf("plugin %s: %w", p, err)
		}
		// A member gets only the capabilities of the outer plugin.
		maps.DeleteFunc(m.Capabilities, func(name string, _ bool) bool { return !p.Capabilities[name] })
		list = append(list, *m)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("plugin %s has no plugins", p)
	}
	return list, nil
}

// pack is unpack's reverse for some of the members of p: it returns one plugin, or none.
func pack(p *chain.Plugin, of []chain.Plugin) []chain.Plugin {
	if p.Type != packed || len(of) == 0 {
		return of
	}
	if len(of) == 1 && string(of[0].Raw) == string(p.Raw) {
		return of // it could not be unpacked
	}
	var conf map[string]json.RawMessage
	if err := json.Unmarshal(p.Raw, &conf); err != nil {
		return of
	}
	caps, raws := map[string]bool{}, []json.RawMessage{}
	for _, m := range of {
		maps.Copy(caps, m.Capabilities)
		raws = append(raws, m.Raw)
	}
	conf["plugins"], conf["capabilities"] = encode(raws), encode(caps)
	return []chain.Plugin{{Type: p.Type, Name: p.Name, Capabilities: caps, Raw: encode(conf)}}
}

// first is the plugin that makes the interface.
func first(list *chain.List) *chain.Plugin { return &members(&list.Plugins[0])[0] }

// encode marshals values that were decoded before or always have a JSON form.
func encode(v any) json.RawMessage {
	data, err := json.Marshal(v)
	if err != nil {
		panic("docker: encode list: " + err.Error())
	}
	return data
}
