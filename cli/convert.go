// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/jsonat"
	"github.com/patchbay-net/patchbay/internal/packed"
	"github.com/patchbay-net/patchbay/spec"
)

const convertLong = `Read a network configuration (.conflist, or .conf with one plugin; "-" is
standard input) and print it with all its plugins inside one plugin of type
patchbay, which runs them in one process with one firewall transaction.
Name, version and all other keys do not change. The plugins keep their own
settings, and the new plugin declares all their capabilities.

With --separate, print the plugins inside a plugin of type patchbay as plugins
of the list, in its place. Each is then a program in CNI_PATH, also another
project's. Containers stay attached: either form checks, detaches and
garbage-collects containers of the other.`

type convertCommand struct {
	app      *app
	Separate bool `long:"separate" description:"the other way: the plugins inside one of type patchbay become separate ones"`
	JSON     bool `long:"json" description:"the same: the output is always JSON"`
	Args     struct {
		File string `positional-arg-name:"FILE" required:"1"`
	} `positional-args:"yes"`
}

// Execute prints the converted configuration.
func (c *convertCommand) Execute([]string) error {
	data, err := c.app.readInput(c.Args.File)
	if err != nil {
		return err
	}
	to := inOne
	if c.Separate {
		to = separate
	}
	out, err := convert(data, to)
	if err != nil {
		return fmt.Errorf("convert %s: %w", c.Args.File, err)
	}
	return c.app.printJSON(out)
}

// readInput reads a file, or standard input if file is "-".
func (a *app) readInput(file string) (data []byte, err error) {
	if file == "-" {
		if data, err = durable.ReadInput(a.stdin); err != nil {
			return nil, fmt.Errorf("read standard input: %w", err)
		}
		return data, nil
	}
	if data, err = durable.ReadGiven(file); err != nil {
		return nil, fmt.Errorf("read network: %w", err)
	}
	return data, nil
}

// convert replaces the plugins of a network by those that to returns. It changes no key outside
// "plugins".
func convert(data []byte, to func([]json.RawMessage) ([]json.RawMessage, error)) (map[string]any, error) {
	var list struct {
		Name       string            `json:"name"`
		CNIVersion string            `json:"cniVersion"`
		Type       string            `json:"type"`
		Plugins    []json.RawMessage `json:"plugins"`
	}
	var outer map[string]json.RawMessage
	if err := json.Unmarshal(data, &outer); err != nil {
		if text, ok := jsonat.Syntax(data, err); ok {
			return nil, spec.Errorf(spec.CodeDecoding, "%s", text)
		}
		return nil, spec.Errorf(spec.CodeDecoding, "error parsing configuration list: %w", err)
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, spec.Errorf(spec.CodeDecoding, "error parsing configuration list: %w", err)
	}
	if err := spec.ValidateNetworkName(list.Name); err != nil {
		return nil, err
	}
	if !spec.AtLeast(list.CNIVersion, "0.3.0") {
		return nil, hinted(fmt.Errorf("cniVersion %q has no lists of plugins", list.CNIVersion), "set cniVersion to 0.3.0 or newer, best %s", spec.Current)
	}
	members := list.Plugins
	if list.Type != "" {
		members, outer = []json.RawMessage{data}, map[string]json.RawMessage{}
	}
	plugins, err := to(members)
	if err != nil {
		return nil, err
	}
	out := map[string]any{"name": list.Name, "cniVersion": list.CNIVersion, "plugins": plugins}
	for key, value := range outer {
		if out[key] == nil {
			out[key] = value
		}
	}
	return out, nil
}

// inOne returns one plugin of type patchbay that contains the given ones.
func inOne(plugins []json.RawMessage) ([]json.RawMessage, error) {
	var members []json.RawMessage
	for _, raw := range plugins {
		_, raw, err := declared(raw)
		if err != nil {
			return nil, err
		}
		members = append(members, raw)
	}
	one, err := packed.Pack(members)
	return []json.RawMessage{one}, err
}

// separate returns the plugins with those of type patchbay replaced by the plugins inside them.
func separate(plugins []json.RawMessage) (out []json.RawMessage, err error) {
	found := false
	for _, raw := range plugins {
		m, _, err := declared(raw)
		if err != nil {
			return nil, err
		}
		members := []json.RawMessage{raw}
		if m.Type == packed.Type {
			found = true
			members, err = packed.Unpack(raw)
		}
		var key *packed.KeyError
		if errors.As(err, &key) {
			return nil, hinted(err, "remove the key if the network works without it: patchbay plugin help patchbay says what it does")
		}
		if err != nil {
			return nil, err
		}
		out = append(out, members...)
	}
	if !found {
		return nil, errors.New("it has no plugin of type patchbay")
	}
	return out, nil
}

// wrapType is the type of the plugin that calls another plugin, in this process if possible.
const wrapType = "wrap"

// member holds the keys of a plugin's configuration that convert reads.
type member struct {
	Type         string          `json:"type"`
	Capabilities map[string]bool `json:"capabilities"`
	Plugin       json.RawMessage `json:"plugin"` // set in a plugin of type wrap: the plugin that it calls
}

// declared decodes one plugin's configuration. To a plugin of type wrap it adds the capabilities
// that the wrapped plugin declares, because otherwise the runtime would not pass them.
func declared(raw json.RawMessage) (m member, out json.RawMessage, err error) {
	if err := json.Unmarshal(raw, &m); err != nil {
		return m, nil, spec.Errorf(spec.CodeDecoding, "error parsing configuration: %w", err)
	}
	if err := spec.ValidatePluginType(m.Type); err != nil {
		return m, nil, err
	}
	if m.Type != wrapType || len(m.Plugin) == 0 {
		return m, raw, nil
	}
	inner, plugin, err := declared(m.Plugin)
	if err != nil || len(inner.Capabilities) == 0 {
		return m, raw, err
	}
	m.Capabilities = packed.Union(m.Capabilities, inner.Capabilities)
	conf, err := spec.ParseObject(raw)
	if err != nil {
		return m, nil, err
	}
	if err := errors.Join(conf.Set("capabilities", m.Capabilities), conf.Set("plugin", plugin)); err != nil {
		return m, nil, err
	}
	out, err = conf.JSON()
	return m, out, err
}
