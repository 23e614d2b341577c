// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/jessevdk/go-flags"

	"github.com/patchbay-net/patchbay/internal/fields"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/all"
)

const pluginLong = `List the built-in plugins, and every field of a plugin's configuration.`

// fieldDocs holds the comments on the fields of the built-in plugins' configurations, as fields.Of reads
// them. TestFieldDocs compares the file with the source. `go test -run TestFieldDocs -update` writes
// the file again.
//
//go:embed fields.txt
var fieldDocs string

// pluginCommand holds the two subcommands.
type pluginCommand struct {
	List pluginListCommand `command:"list" description:"list the built-in plugins"`
	Help pluginHelpCommand `command:"help" description:"print the fields of a plugin's configuration"`
}

type pluginListCommand struct {
	app  *app
	JSON bool `long:"json" description:"print a JSON array"`
}

// pluginInfo describes a plugin as `plugin list` and `plugin help` print it.
type pluginInfo struct {
	Type         string         `json:"type"`
	Kind         string         `json:"kind"`
	About        string         `json:"about"`
	Versions     []string       `json:"supportedVersions"`
	Capabilities []string       `json:"capabilities,omitempty"`
	Fields       []fields.Field `json:"fields,omitempty"`
}

func infoOf(p *plugin.Plugin) pluginInfo {
	return pluginInfo{Type: p.Name, Kind: p.Kind.String(), About: p.About, Versions: p.Versions(), Capabilities: p.Capabilities}
}

// Execute prints one line per plugin.
func (c *pluginListCommand) Execute([]string) error {
	list := make([]pluginInfo, 0, len(c.app.plugins))
	t := newTable("TYPE", "KIND", "ABOUT")
	for _, p := range c.app.plugins {
		list = append(list, infoOf(p))
		t.row(p.Name, p.Kind.String(), p.About)
	}
	return c.app.show(list, t.String())
}

type pluginHelpCommand struct {
	app  *app
	JSON bool `long:"json" description:"print a JSON object"`
	Args struct {
		Name pluginName `positional-arg-name:"NAME" required:"1"`
	} `positional-args:"yes"`
}

// pluginName is an argument that the shell completes to a plugin.
type pluginName string

// Complete lists the plugins that begin with match.
func (*pluginName) Complete(match string) (out []flags.Completion) {
	for _, p := range all.Plugins() {
		out = append(out, flags.Completion{Item: p.Name, Description: p.About})
	}
	return beginning(match, out)
}

// Execute prints the fields of the plugin's configuration.
func (c *pluginHelpCommand) Execute([]string) error {
	p := c.app.plugin(string(c.Args.Name))
	if p == nil {
		return usage("patchbay plugin list shows them", "no built-in plugin %q", c.Args.Name)
	}
	info := infoOf(p)
	if p.Conf != nil {
		info.Fields = fields.Of(p.Conf(), fieldDocs)
	}
	return c.app.show(info, info.text())
}

// plugin returns the built-in plugin with this name. If there is none, it returns nil.
func (a *app) plugin(name string) *plugin.Plugin {
	for _, p := range a.plugins {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// text is the help page of a plugin.
func (p pluginInfo) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%s): %s\n\n", p.Type, p.Kind, p.About)
	fmt.Fprintf(&b, "CNI versions: %s\n", strings.Join(p.Versions, " "))
	if len(p.Capabilities) > 0 {
		fmt.Fprintf(&b, "Capabilities: %s\n", strings.Join(p.Capabilities, " "))
	}
	if len(p.Fields) == 0 {
		return b.String() + "\nNo fields of its own.\n"
	}
	t := newTable()
	for _, f := range p.Fields {
		fieldRows(t, f, "  ")
	}
	return b.String() + "\nFields:\n" + t.String()
}

// fieldRows adds rows for a field and for the fields inside it.
func fieldRows(t *table, f fields.Field, indent string) {
	doc := f.Doc
	if f.Default != "" {
		doc = strings.TrimSpace(doc + " (default " + f.Default + ")")
	}
	t.row(indent+f.Key, f.Type, doc)
	for _, inner := range f.Fields {
		fieldRows(t, inner, indent+"  ")
	}
}
