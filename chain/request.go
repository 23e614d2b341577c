// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/spec"
)

// request derives a plugin's standard input from its object in the list (SPEC.md, "Deriving
// request configuration"): the list's name and version, the keys that the runtime sets, and
// its share of the capabilities. Keys that only the runtime may set are removed, in any
// letter case, because plugins match keys in any case.
type request struct {
	list         *List
	capabilities map[string]any // nil outside ADD, DEL and CHECK
	prevResult   json.RawMessage
	valid        *[]spec.Attachment // GC
	listed       time.Time          // GC: when that list was begun
}

// config returns the request for one plugin.
func (r *request) config(p *Plugin) ([]byte, error) {
	var conf map[string]json.RawMessage
	if err := json.Unmarshal(p.Raw, &conf); err != nil {
		return nil, spec.Errorf(spec.CodeDecoding, "unmarshal existing network bytes: %w", err)
	}
	set := map[string]any{"name": r.list.Name, "cniVersion": r.list.CNIVersion}
	if share := r.share(p); len(share) > 0 {
		set["runtimeConfig"] = share
	}
	if len(r.prevResult) > 0 {
		set["prevResult"] = r.prevResult
	}
	if r.valid != nil {
		set["cni.dev/valid-attachments"] = *r.valid
		set["cni.dev/attachments"] = *r.valid // the name in the 1.1.0 text (cni#1101)
		set[clock.ListedKey] = r.listed
	}
	strip(conf, set)
	for key, value := range set {
		data, err := json.Marshal(value)
		if err != nil {
			return nil, fmt.Errorf("encode %s of plugin %s: %w", key, p, err)
		}
		conf[key] = data
	}
	return json.Marshal(conf)
}

// share is the intersection of the capabilities that the plugin declares and the caller
// gives.
func (r *request) share(p *Plugin) map[string]any {
	out := map[string]any{}
	for name, on := range p.Capabilities {
		if value, ok := r.capabilities[name]; on && ok {
			out[name] = value
		}
	}
	return out
}

// strip removes the keys that must not come from the file, and those that set
// replaces.
func strip(conf map[string]json.RawMessage, set map[string]any) {
	for key := range conf {
		lower := strings.ToLower(key)
		drop := lower == "capabilities" || lower == "prevresult" || strings.HasPrefix(lower, "cni.dev/")
		for name := range set {
			drop = drop || strings.EqualFold(key, name)
		}
		if drop {
			delete(conf, key)
		}
	}
}
