// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/cnm/cnmcli"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/all"
)

// The table of fields on a plugin's page is between these lines.
const (
	tableStart = "<!-- The fields, from the comments of the plugin's Conf (go test ./cli -run TestField -update, twice) -->\n"
	tableEnd   = "<!-- end of the fields -->\n"
)

// howToDocument is the advice for the author of a field.
const howToDocument = `End the comment of the field with what differs from the reference plugin's field of that name, as one of
	// Reference: same.
	// Reference: none, ours only.
	// Reference: does not look at IPv6.       (or whatever it does otherwise)
and give a default that the value of Conf() does not show with "Default: ..." before it. Then run, twice,
	go test ./cli -run TestField -update`

// TestFieldTables compares the table in docs/plugins/NAME.md with the code. Every field must say
// how the reference differs.
func TestFieldTables(t *testing.T) {
	for _, p := range append(all.Plugins(), cnmcli.Plugins()...) {
		var rows []string
		if p.Conf != nil {
			rows = tableRows(t, p, fieldsOf(p.Conf()), "", map[string]bool{})
		}
		if len(rows) > 0 {
			page(t, p, rows)
		}
	}
}

// tableRows lists fields by their paths, depth first. If a type occurs several times, it has rows
// only at the first place.
func tableRows(t *testing.T, p *plugin.Plugin, fields []field, path string, seen map[string]bool) (rows []string) {
	for _, f := range fields {
		at := path + f.Key
		foreign := strings.HasPrefix(f.name, "spec.")
		switch {
		case foreign || seen[f.name]:
			continue // the protocol's own field, or listed before
		case f.Reference != "" && f.Doc != "":
			rows = append(rows, row(at, f))
		case len(f.Fields) == 0 || strings.HasPrefix(f.Type, "list"):
			t.Errorf("plugin %s: the comment of %s (%s) does not say what it does, or what differs from the reference.\n%s",
				p.Name, f.name, at, howToDocument)
		}
		seen[f.name] = true
		if strings.HasPrefix(f.Type, "list") {
			at += "[]"
		}
		rows = append(rows, tableRows(t, p, f.Fields, at+".", seen)...)
	}
	return rows
}

func row(at string, f field) string {
	kind := f.Type
	if f.Default != "" {
		kind += ", " + f.Default
	}
	cells := []string{"`" + at + "`", kind, f.Doc, f.Reference}
	for i := range cells {
		cells[i] = strings.ReplaceAll(cells[i], "|", `\|`)
	}
	return "| " + strings.Join(cells, " | ") + " |\n"
}

// page compares the table on a plugin's page, or writes it with -update.
func page(t *testing.T, p *plugin.Plugin, rows []string) {
	t.Helper()
	file := "../docs/plugins/" + p.Name + ".md"
	data, err := os.ReadFile(file)
	if err != nil {
		t.Errorf("%v: write the page of plugin %s", err, p.Name)
		return
	}
	head, rest, found := strings.Cut(string(data), tableStart)
	_, tail, ended := strings.Cut(rest, tableEnd)
	if !found || !ended {
		t.Errorf("%s: no place for the table of fields; put these two lines there and run the test with -update:\n%s%s", file, tableStart, tableEnd)
		return
	}
	table := "| field | type, default | ours | the reference, where it differs |\n| --- | --- | --- | --- |\n" + strings.Join(rows, "")
	golden(t, file, head+tableStart+fmt.Sprintf("\n%s\n", table)+tableEnd+tail)
}
