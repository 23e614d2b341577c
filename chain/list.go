// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/patchbay-net/patchbay/spec"
)

// List is a network configuration: a named list of plugins.
type List struct {
	Name                   string
	CNIVersion             string // highest version of the list that is not newer than this library's; may be empty, which means 0.1.0
	DisableCheck           bool
	DisableGC              bool
	LoadOnlyInlinedPlugins bool
	Plugins                []Plugin

	Bytes []byte // the whole configuration as JSON, including plugins from other files
	File  string // path of the file; empty after ParseList

	source []byte // content of File, without plugins from other files
}

// Plugin is one member of a list.
type Plugin struct {
	Type         string
	Name         string          // name of the plugin in error messages
	Capabilities map[string]bool // capabilities that the plugin declares
	Raw          json.RawMessage // the plugin's JSON object
}

// String describes the plugin as libcni's messages do.
func (p *Plugin) String() string {
	if p.Name == "" {
		return fmt.Sprintf("type=%q", p.Type)
	}
	return fmt.Sprintf("type=%q name=%q", p.Type, p.Name)
}

// listError returns an error that begins as libcni's errors about a list do.
func listError(format string, args ...any) error {
	return spec.Invalid("error parsing configuration list: "+format, args...)
}

// ParseList reads the JSON of a .conflist. ParseList accepts a list without plugins, because
// LoadFile may add plugins from other files.
func ParseList(data []byte) (*List, error) {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		return nil, spec.Errorf(spec.CodeDecoding, "error parsing configuration list: %w", err)
	}
	l := &List{Bytes: data}
	for _, step := range []func(map[string]json.RawMessage) error{l.parseName, l.parseVersion, l.parseFlags, l.parsePlugins} {
		if err := step(raw); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func (l *List) parseName(raw map[string]json.RawMessage) error {
	data, ok := raw["name"]
	if !ok {
		return listError("no name")
	}
	if json.Unmarshal(data, &l.Name) != nil || string(data) == "null" {
		return listError("invalid name type %s", jsonType(data))
	}
	return spec.ValidateNetworkName(l.Name)
}

// parseFlags reads the switches of a list. A switch may be a boolean or a string, because
// specification 0.4.0 defined disableCheck as a string.
func (l *List) parseFlags(raw map[string]json.RawMessage) (err error) {
	if l.DisableCheck, err = parseFlag(raw, "disableCheck"); err != nil {
		return err
	}
	if l.DisableGC, err = parseFlag(raw, "disableGC"); err != nil {
		return err
	}
	l.LoadOnlyInlinedPlugins, err = parseFlag(raw, "loadOnlyInlinedPlugins")
	return err
}

func parseFlag(raw map[string]json.RawMessage, key string) (bool, error) {
	data, ok := raw[key]
	if !ok {
		return false, nil
	}
	var value any
	if err := json.Unmarshal(data, &value); err != nil {
		return false, listError("%w", err)
	}
	switch v := value.(type) {
	case bool:
		return v, nil
	case string:
		switch s := strings.ToLower(v); s {
		case "true", "false":
			return s == "true", nil
		default:
			return false, listError("invalid value %q for %s", s, key)
		}
	}
	return false, listError("invalid type %s for %s", jsonType(data), key)
}

func (l *List) parsePlugins(raw map[string]json.RawMessage) error {
	data, ok := raw["plugins"]
	switch {
	case !ok && l.LoadOnlyInlinedPlugins:
		return listError("`loadOnlyInlinedPlugins` is true, and no 'plugins' key")
	case !ok:
		return nil
	}
	var plugins []json.RawMessage
	if json.Unmarshal(data, &plugins) != nil || string(data) == "null" {
		return listError("invalid 'plugins' type %s", jsonType(data))
	}
	if len(plugins) == 0 {
		return listError("no plugins in list")
	}
	for i, object := range plugins {
		p, err := ParsePlugin(object)
		if err != nil {
			return fmt.Errorf("failed to parse plugin config %d: %w", i, err)
		}
		l.Plugins = append(l.Plugins, *p)
	}
	return nil
}

// ParsePlugin reads the JSON object of one plugin.
func ParsePlugin(data []byte) (*Plugin, error) {
	var head struct {
		Type         string          `json:"type"`
		Name         string          `json:"name"`
		Capabilities map[string]bool `json:"capabilities"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, spec.Errorf(spec.CodeDecoding, "error parsing configuration: %w", err)
	}
	if err := spec.ValidatePluginType(head.Type); err != nil {
		return nil, err
	}
	return &Plugin{Type: head.Type, Name: head.Name, Capabilities: head.Capabilities, Raw: data}, nil
}

// ParseSingle reads the JSON of a .conf or .json file, which holds a single plugin.
// ParseSingle returns a list with that plugin.
func ParseSingle(data []byte) (*List, error) {
	var raw json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		return nil, spec.Errorf(spec.CodeDecoding, "error parsing configuration: %w", err)
	}
	if _, err := ParsePlugin(raw); err != nil {
		return nil, err
	}
	var head struct {
		Name       string `json:"name"`
		CNIVersion string `json:"cniVersion"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return nil, spec.Errorf(spec.CodeDecoding, "error parsing configuration: %w", err)
	}
	list, err := json.Marshal(map[string]any{
		"name": head.Name, "cniVersion": head.CNIVersion, "plugins": []json.RawMessage{raw},
	})
	if err != nil {
		return nil, fmt.Errorf("encode configuration list: %w", err)
	}
	return ParseList(list)
}

// inline puts the plugins of all files into Bytes. Then a cached copy of the configuration needs
// no other file.
func (l *List) inline() error {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(l.Bytes, &raw); err != nil {
		return listError("%w", err)
	}
	plugins := make([]json.RawMessage, len(l.Plugins))
	for i, p := range l.Plugins {
		plugins[i] = p.Raw
	}
	var errs [2]error
	raw["plugins"], errs[0] = json.Marshal(plugins)
	raw["loadOnlyInlinedPlugins"] = json.RawMessage("true")
	l.Bytes, errs[1] = json.Marshal(raw)
	return errors.Join(errs[:]...)
}

// jsonType names the Go type that encoding/json would choose for a value. libcni's messages
// contain these names.
func jsonType(data json.RawMessage) string {
	var value any
	_ = json.Unmarshal(data, &value) // cannot fail: data is part of a decoded document
	return fmt.Sprintf("%T", value)
}

// parseVersion chooses the version of the list. It is the highest version, not newer than this library's,
// that the configuration names in cniVersion or cniVersions (SPEC.md 1.1.0). If
// there is no such version, the list keeps cniVersion, and the plugins refuse it.
func (l *List) parseVersion(raw map[string]json.RawMessage) error {
	if data, ok := raw["cniVersion"]; ok {
		if json.Unmarshal(data, &l.CNIVersion) != nil || string(data) == "null" {
			return listError("invalid cniVersion type %s", jsonType(data))
		}
	}
	data, ok := raw["cniVersions"]
	if !ok {
		return nil
	}
	offered, err := parseVersions(data)
	if err != nil {
		return err
	}
	if l.CNIVersion != "" {
		if err := spec.ValidateVersion(l.CNIVersion); err != nil {
			return listError("invalid cniVersion %s: %w", l.CNIVersion, err)
		}
		offered = append(offered, l.CNIVersion)
	}
	if best := highest(offered); best != "" {
		l.CNIVersion = best
	}
	return nil
}

func parseVersions(data json.RawMessage) ([]string, error) {
	var entries []json.RawMessage
	if json.Unmarshal(data, &entries) != nil || string(data) == "null" {
		return nil, listError("invalid type for cniVersions: %s", jsonType(data))
	}
	versions := make([]string, len(entries))
	for i, entry := range entries {
		if json.Unmarshal(entry, &versions[i]) != nil || string(entry) == "null" {
			return nil, listError("invalid type for cniVersions index %d: %s", i, jsonType(entry))
		}
		if err := spec.ValidateVersion(versions[i]); err != nil {
			return nil, fmt.Errorf("%w", listError("invalid cniVersions entry %s at index %d: %w", versions[i], i, err))
		}
	}
	return versions, nil
}

// highest returns the newest of the offered versions that is not newer than this library's. Like libcni it takes
// a version that does not exist, such as 0.9.0; plugins refuse it.
func highest(offered []string) (best string) {
	for _, v := range offered {
		if spec.Compare(v, spec.Current) <= 0 && (best == "" || spec.Compare(v, best) > 0) {
			best = v
		}
	}
	return best
}
