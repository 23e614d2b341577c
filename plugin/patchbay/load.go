// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package patchbay

import (
	"encoding/json"

	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// load decodes every member and gives it what a runtime would: name, version,
// its share of runtimeConfig, the attachments of a GC. Nothing runs unless all
// members are well-formed.
func load(r *plugin.Request) ([]*member, error) {
	var conf Conf
	if err := r.Decode(&conf); err != nil {
		return nil, err
	}
	if len(conf.Plugins) == 0 {
		return nil, spec.Errorf(spec.CodeInvalidConfig, "error parsing configuration list: no plugins in list")
	}
	members := make([]*member, 0, len(conf.Plugins))
	for i, raw := range conf.Plugins {
		m, err := loadMember(raw, r, &conf)
		if err != nil {
			return nil, spec.AsError(err).WithDetails("member %d of %d in network %s", i+1, len(conf.Plugins), r.Network)
		}
		members = append(members, m)
	}
	return members, nil
}

func loadMember(raw json.RawMessage, r *plugin.Request, conf *Conf) (*member, error) {
	var head struct {
		Type         string          `json:"type"`
		Capabilities map[string]bool `json:"capabilities"`
	}
	m := new(member)
	if err := json.Unmarshal(raw, &head); err != nil {
		return nil, spec.Errorf(spec.CodeDecoding, "error parsing configuration: %w", err)
	}
	if err := json.Unmarshal(raw, &m.conf); err != nil {
		return nil, spec.Errorf(spec.CodeDecoding, "error parsing configuration: %w", err)
	}
	if err := spec.ValidatePluginType(head.Type); err != nil {
		return nil, err
	}
	if head.Type == name {
		return nil, spec.Errorf(spec.CodeInvalidConfig, "a patchbay plugin cannot be a member of another one")
	}
	m.kind = head.Type
	m.set("name", r.Network)
	m.set("cniVersion", r.Version)
	m.grant(head.Capabilities, conf.RuntimeConfig)
	if _, own := m.conf["args"]; !own && len(conf.Args) > 0 {
		m.conf["args"] = conf.Args
	}
	if valid, ok := r.Head.Valid(); ok {
		m.set("cni.dev/valid-attachments", valid)
		m.set("cni.dev/attachments", valid)
	}
	return m, nil
}

// grant writes runtimeConfig with the capabilities the member declares, and
// removes the declaration, as a runtime must (SPEC.md, "Deriving request").
func (m *member) grant(declared map[string]bool, given map[string]json.RawMessage) {
	delete(m.conf, "capabilities")
	delete(m.conf, "runtimeConfig")
	share := make(map[string]json.RawMessage)
	for name, on := range declared {
		if value, ok := given[name]; on && ok {
			share[name] = value
		}
	}
	if len(share) > 0 {
		m.set("runtimeConfig", share)
	}
}

// set writes a key whose value always marshals: strings, lists of strings and
// what was JSON before.
func (m *member) set(key string, value any) {
	data, err := json.Marshal(value)
	if err != nil {
		panic("patchbay: encode " + key + ": " + err.Error())
	}
	m.conf[key] = data
}
