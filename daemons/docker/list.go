// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/daemons/docker/state"
	"github.com/patchbay-net/patchbay/internal/packed"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/spec"
)

// part names one of the lists into which a chain is cut.
type part int

const (
	hold part = iota
	post
	ports
	parts

	lease // not a part of the chain, but with a cache of its own
)

// String returns the name of the part's cache.
func (p part) String() string {
	return [...]string{hold: "hold", post: "post", ports: "ports", lease: "lease"}[p]
}

// portMappings is the capability of the plugins that publish ports.
const portMappings = "portMappings"

// cut returns one part of a list. Plugins that publish ports are a separate part, because Docker
// moves the ports to the endpoint that has the default gateway. If auto is set and the list has no
// such plugin, cut adds our portmap.
func cut(list *chain.List, p part, auto bool) *chain.List {
	out, _ := rebuild(list, func(i int, m *chain.Plugin) (bool, error) { // this function never returns an error
		switch {
		case i == 0:
			return p == hold, nil
		case m.Capabilities[portMappings]:
			return p == ports, nil
		}
		return p == post, nil
	})
	if p == ports && auto && len(out.Plugins) == 0 {
		out.Plugins = []chain.Plugin{{
			Type: "portmap", Capabilities: map[string]bool{portMappings: true},
			Raw: json.RawMessage(`{"type":"portmap","capabilities":{"portMappings":true}}`),
		}}
		out.Bytes = encodeList(out)
	}
	return out
}

// rebuild returns a list of the plugins for which keep returns true. keep gets each plugin and
// its index, and may change the plugin. A packed plugin is unpacked for this.
func rebuild(list *chain.List, keep func(int, *chain.Plugin) (bool, error)) (*chain.List, error) {
	out := *list
	out.Plugins = nil
	n := 0
	for i := range list.Plugins {
		var of []chain.Plugin
		for _, m := range members(&list.Plugins[i]) {
			ok, err := keep(n, &m)
			if err != nil {
				return nil, err
			}
			if ok {
				of = append(of, m)
			}
			n++
		}
		out.Plugins = append(out.Plugins, pack(&list.Plugins[i], of)...)
	}
	out.Bytes = encodeList(&out) // the cache must hold this list
	return &out, nil
}

// encodeList encodes a list so that it needs no other file.
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

// publishes reports whether a list has a plugin that publishes ports. The first plugin does not
// count, because it runs before Docker says which ports to publish.
func publishes(list *chain.List) bool { return len(cut(list, ports, false).Plugins) > 0 }

// moved returns a copy of a result for the next part. In it, the interface from the holding
// namespace is in another namespace and has another name.
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

// members returns the plugins inside a packed plugin, or the plugin itself if it is not packed.
// If the inner list cannot be read, it also returns the plugin itself, which will refuse its
// configuration. The driver cuts the inner list into parts too. Those inner plugins that are in one
// part still run in one call.
func members(p *chain.Plugin) []chain.Plugin {
	if p.Type == packed.Type {
		if list, err := unpack(p); err == nil {
			return list
		}
	}
	return []chain.Plugin{*p}
}

func unpack(p *chain.Plugin) (list []chain.Plugin, err error) {
	raws, err := packed.Members(p.Raw)
	if err != nil {
		return nil, fmt.Errorf("plugin %s: %w", p, err)
	}
	for _, raw := range raws {
		m, err := chain.ParsePlugin(raw)
		if err != nil {
			return nil, fmt.Errorf("plugin %s: %w", p, err)
		}
		list = append(list, *m)
	}
	return list, nil
}

// pack puts the inner plugins of a packed plugin into one plugin again. Without inner plugins it
// returns none.
func pack(p *chain.Plugin, of []chain.Plugin) []chain.Plugin {
	if p.Type != packed.Type || len(of) == 0 {
		return of
	}
	if len(of) == 1 && string(of[0].Raw) == string(p.Raw) {
		return of // the plugin was not packed
	}
	conf, err := spec.ParseObject(p.Raw)
	if err != nil {
		return of
	}
	caps, raws := map[string]bool{}, []json.RawMessage{}
	for _, m := range of {
		caps = packed.Union(caps, m.Capabilities)
		raws = append(raws, m.Raw)
	}
	raw, err := changed(conf, map[string]any{"plugins": raws, "capabilities": caps})
	if err != nil {
		return of
	}
	return []chain.Plugin{{Type: p.Type, Name: p.Name, Capabilities: caps, Raw: raw}}
}

// first returns the plugin that makes the interface.
func first(list *chain.List) *chain.Plugin { return &members(&list.Plugins[0])[0] }

// encode encodes values that cannot fail to encode, because they were decoded from JSON or have
// simple types.
func encode(v any) json.RawMessage {
	data, err := json.Marshal(v)
	if err != nil {
		panic("docker: encode list: " + err.Error())
	}
	return data
}

// Docker's options may change the configuration of these plugins.
const (
	pluginBridge   = "bridge"
	pluginFirewall = "firewall"
)

// with returns a list in which a key has another value, in the plugins for which change returns
// true.
func with(list *chain.List, key string, value any, change func(int, *chain.Plugin) bool) (*chain.List, error) {
	return rebuild(list, func(i int, p *chain.Plugin) (bool, error) {
		if !change(i, p) {
			return true, nil
		}
		conf, err := spec.ParseObject(p.Raw)
		if err != nil {
			return false, fmt.Errorf("decode plugin %s: %w", p, err)
		}
		p.Raw, err = changed(conf, map[string]any{key: value})
		return true, err
	})
}

// changed returns a configuration in which keys have other values.
func changed(conf spec.Object, to map[string]any) (json.RawMessage, error) {
	for key, value := range to {
		if err := conf.Set(key, value); err != nil {
			return nil, err
		}
	}
	return conf.JSON()
}

func theFirst(i int, _ *chain.Plugin) bool { return i == 0 }

// isInternal reports whether a configuration makes its network internal.
func isInternal(list *chain.List) bool {
	var conf struct {
		Internal bool `json:"internal"`
	}
	return json.Unmarshal(first(list).Raw, &conf) == nil && conf.Internal
}

// spansHosts reports whether other hosts serve a part of the network.
func spansHosts(list *chain.List) bool {
	var conf struct {
		Span []string `json:"span"`
	}
	return json.Unmarshal(first(list).Raw, &conf) == nil && len(conf.Span) > 0
}

// policyOf returns the ingressPolicy of the plugin firewall in a list, or "".
func policyOf(list *chain.List) string {
	for i := range list.Plugins {
		for _, p := range members(&list.Plugins[i]) {
			var conf struct {
				IngressPolicy string `json:"ingressPolicy"`
			}
			if p.Type == pluginFirewall && json.Unmarshal(p.Raw, &conf) == nil {
				return conf.IngressPolicy
			}
		}
	}
	return ""
}

// closed returns a list that makes its network internal. The plugin bridge is the only one with a
// key for this.
func closed(list *chain.List) (*chain.List, error) {
	switch {
	case isInternal(list):
		return list, nil
	case first(list).Type != pluginBridge:
		return nil, fmt.Errorf("--internal: only the plugin bridge supports it, and the first plugin of %s is %s", list.Name, first(list).Type)
	}
	return with(list, "internal", true, theFirst)
}

// isolated returns a list in which the plugin firewall has a policy. If the list has no firewall,
// isolated adds it.
func isolated(list *chain.List, policy string) (*chain.List, error) {
	if first(list).Type != pluginBridge {
		return nil, fmt.Errorf("option %s: only networks of the plugin bridge can be isolated, and the first plugin of %s is %s", optIsolate, list.Name, first(list).Type)
	}
	found := false
	isFirewall := func(_ int, p *chain.Plugin) bool {
		found = found || p.Type == pluginFirewall
		return p.Type == pluginFirewall
	}
	if out, err := with(list, "ingressPolicy", policy, isFirewall); found || err != nil {
		return out, err
	}
	more := *list
	more.Plugins = append(slices.Clone(list.Plugins), chain.Plugin{Type: pluginFirewall, Raw: json.RawMessage(`{"type":"firewall"}`)})
	return with(&more, "ingressPolicy", policy, isFirewall)
}

// checkInternal returns an error if the plugin has not made the network internal: the reference's
// bridge ignores the key.
func (d *Driver) checkInternal(n *network, e *state.Endpoint) error {
	if !n.Internal || first(n.list).Type != pluginBridge || !isInternal(n.list) {
		return nil
	}
	for _, link := range e.Result.Interfaces {
		if link.Sandbox == "" && record.New(d.opts.Paths.Run).HasHolder(record.InternalFact(link.Name)) {
			return nil
		}
	}
	return fmt.Errorf("--internal: the plugin bridge in %v did not keep the network internal: install ours (patchbay install)", d.opts.Plugins)
}
