// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/patchbay-net/patchbay/spec"
)

// ParseCached reads a configuration from the cache. It is a list or, if libcni's AddNetwork made the
// attachment, the object of a single plugin. If it has no plugin, the error wraps ErrNotCached. libcni caches a
// list without the plugins that other files add to it; Runtime.CachedList adds them.
func ParseCached(config []byte) (*List, error) {
	list, single, err := parseCached(config)
	if err == nil && !single && len(list.Plugins) == 0 {
		err = fmt.Errorf("cached configuration of network %s has no plugins: %w", list.Name, ErrNotCached)
	}
	return list, err
}

func parseCached(config []byte) (list *List, single bool, err error) {
	if len(config) == 0 {
		return nil, false, ErrNotCached
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(config, &keys); err != nil {
		return nil, false, spec.Errorf(spec.CodeDecoding, "cached configuration: %w", err)
	}
	object, err := spec.ParseObject(config)
	if err != nil {
		return nil, false, spec.Errorf(spec.CodeDecoding, "cached configuration: %w", err)
	}
	_, isList := keys["plugins"] // libcni ignores the case of a plugin's keys, but not of a list's
	if _, single = object.Get("type"); single && !isList {
		list, err = ParseSingle(config)
	} else {
		single = false
		list, err = ParseList(config)
	}
	if err != nil {
		return nil, false, fmt.Errorf("cached configuration: %w", err)
	}
	return list, single, nil
}

// CachedList returns the list with which an attachment was made. To a list that may have had plugins from other
// files, it adds those that the directory of the network has now. If the cache does not say which plugins
// there were, the error wraps ErrNotCached.
func (rt *Runtime) CachedList(c *Cached) (*List, error) {
	list, single, err := parseCached(c.Config)
	if err != nil {
		return nil, err
	}
	if list.Name != c.Network {
		return nil, fmt.Errorf("cached configuration is that of network %s: %w", list.Name, ErrNotCached)
	}
	if !single && !list.LoadOnlyInlinedPlugins {
		if err := list.addFiles(filepath.Join(or(rt.ConfDir, DefaultConfDir), list.Name)); err != nil {
			return nil, err
		}
	}
	if len(list.Plugins) == 0 {
		return nil, fmt.Errorf("cached configuration of network %s has no plugins, and other files have none: %w", list.Name, ErrNotCached)
	}
	return list, nil
}
