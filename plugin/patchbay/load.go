// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package patchbay

import (
	"encoding/json"

	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// load decodes every member. Nothing runs unless all are well-formed.
func load(r *plugin.Request) ([]*plugin.Inner, error) {
	var conf Conf
	if err := r.Decode(&conf); err != nil {
		return nil, err
	}
	if len(conf.Plugins) == 0 {
		return nil, spec.Errorf(spec.CodeInvalidConfig, "error parsing configuration list: no plugins in list")
	}
	members := make([]*plugin.Inner, 0, len(conf.Plugins))
	for i, raw := range conf.Plugins {
		m, err := loadMember(raw, r, &conf)
		if err != nil {
			return nil, spec.AsError(err).WithDetails("member %d of %d in network %s", i+1, len(conf.Plugins), r.Network)
		}
		members = append(members, m)
	}
	return members, nil
}

func loadMember(raw json.RawMessage, r *plugin.Request, conf *Conf) (*plugin.Inner, error) {
	m, err := plugin.NewInner(r, raw, plugin.Given{Caps: conf.RuntimeConfig, Args: conf.Args})
	if err != nil {
		return nil, err
	}
	if m.Type == name {
		return nil, spec.Errorf(spec.CodeInvalidConfig, "a patchbay plugin cannot be a member of another one")
	}
	return m, nil
}
