// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/docker/state"
	"github.com/patchbay-net/patchbay/internal/record"
)

// The plugins whose configurations Docker's options change.
const (
	pluginBridge   = "bridge"
	pluginFirewall = "firewall"
)

// with returns a list in which some plugins have another value of a key. change is called
// with each plugin and its index, as if none were packed.
func with(list *chain.List, key string, value any, change func(int, *chain.Plugin) bool) (*chain.List, error) {
	out := *list
	out.Plugins = nil
	n := 0
	for i := range list.Plugins {
		of := members(&list.Plugins[i])
		for m := range of {
			if change(n, &of[m]) {
				if err := set(&of[m], key, value); err != nil {
					return nil, err
				}
			}
			n++
		}
		out.Plugins = append(out.Plugins, pack(&list.Plugins[i], of)...)
	}
	out.Bytes = encodeList(&out)
	return &out, nil
}

func set(p *chain.Plugin, key string, value any) error {
	var conf map[string]json.RawMessage
	if err := json.Unmarshal(p.Raw, &conf); err != nil {
		return fmt.Errorf("decode plugin %s: %w", p, err)
	}
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode %s: %w", key, err)
	}
	conf[key] = data
	p.Raw = encode(conf)
	return nil
}

func theFirst(i int, _ *chain.Plugin) bool { return i == 0 }

// isInternal says whether a configuration keeps its network internal.
func isInternal(list *chain.List) bool {
	var conf struct {
		Internal bool `json:"internal"`
	}
	return json.Unmarshal(first(list).Raw, &conf) == nil && conf.Internal
}

// closed makes a network internal. Only the key of the plugin bridge can do so.
func closed(list *chain.List) (*chain.List, error) {
	switch {
	case isInternal(list):
		return list, nil
	case first(list).Type != pluginBridge:
		return nil, fmt.Errorf("--internal: only the plugin bridge supports it, and the first plugin of %s is %s", list.Name, first(list).Type)
	}
	return with(list, "internal", true, theFirst)
}

// logOpen logs the networks that were created with --internal by a release that did not
// keep them internal.
func (d *Driver) logOpen() {
	all, _ := d.store.Networks.List() // Sweep reports those that cannot be read
	for _, n := range all {
		list, err := chain.ParseList(n.Config)
		if err == nil && len(list.Plugins) > 0 && n.Internal && !n.Deleted && !isInternal(list) {
			d.opts.Log("network %.12s (%s) was made --internal by an earlier release and is open: create it again", n.ID, list.Name)
		}
	}
}

// isolated sets the policy of a network's firewall, and adds a firewall to a network
// without one.
func isolated(list *chain.List, policy string) (*chain.List, error) {
	if first(list).Type != pluginBridge {
		return nil, fmt.Errorf("option %s: only networks of the plugin bridge can be isolated, and the first plugin of %s is %s", optIsolate, list.Name, first(list).Type)
	}
	isFirewall := func(_ int, p *chain.Plugin) bool { return p.Type == pluginFirewall }
	if !slices.ContainsFunc(list.Plugins, func(p chain.Plugin) bool {
		return slices.ContainsFunc(members(&p), func(m chain.Plugin) bool { return isFirewall(0, &m) })
	}) {
		more := *list
		more.Plugins = append(slices.Clone(list.Plugins), chain.Plugin{Type: pluginFirewall, Raw: json.RawMessage(`{"type":"firewall"}`)})
		list = &more
	}
	return with(list, "ingressPolicy", policy, isFirewall)
}

// checkInternal checks that the plugin has made the network internal: the reference's
// bridge ignores the key.
func (d *Driver) checkInternal(n *network, e *state.Endpoint) error {
	if !n.Internal || first(n.list).Type != pluginBridge || !isInternal(n.list) {
		return nil
	}
	for _, link := range e.Result.Interfaces {
		if link.Sandbox == "" && record.New(d.opts.Paths.Run).Stands(record.InternalFact(link.Name)) {
			return nil
		}
	}
	return fmt.Errorf("--internal: the plugin bridge in %v did not keep the network internal: install ours (patchbay install)", d.opts.Plugins)
}
