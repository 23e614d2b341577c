// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package patchbay

import (
	"encoding/json"

	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// load decodes every member. Nothing may run unless all are well-formed. For DEL and GC
// load returns the well-formed ones beside the first error.
func load(r *plugin.Request) (members []*plugin.Inner, err error) {
	if _, err := r.Conf(); err != nil {
		return nil, err
	}
	conf := plugin.ConfOf[Conf](r)
	if len(conf.Plugins) == 0 {
		return nil, spec.Invalid("error parsing configuration list: no plugins in list")
	}
	for i, raw := range conf.Plugins {
		m, merr := loadMember(raw, r, conf)
		if merr == nil {
			members = append(members, m)
		} else if err == nil {
			err = spec.AsError(merr).WithDetails("member %d of %d in network %s", i+1, len(conf.Plugins), r.Network)
		}
	}
	return members, err
}

func loadMember(raw json.RawMessage, r *plugin.Request, conf *Conf) (*plugin.Inner, error) {
	m, err := plugin.NewInner(r, raw, plugin.Given{Caps: conf.RuntimeConfig, Args: conf.Args})
	if err != nil {
		return nil, err
	}
	if m.Type == name {
		return nil, spec.Invalid("a patchbay plugin cannot be a member of another one")
	}
	return m, nil
}
