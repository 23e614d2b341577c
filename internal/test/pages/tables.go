// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package pages writes what the pages of plugins say of their configurations, from the comments of the
// source, and compares it. The plugins are an argument, because each program has its own.
package pages

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/fields"
	"github.com/patchbay-net/patchbay/internal/test/reftest"
	"github.com/patchbay-net/patchbay/plugin"
)

// The table of fields on a plugin's page is between these lines. The first names the command that writes it.
const (
	tableStart = "<!-- The fields, from the comments of the plugin's Conf (%s) -->\n"
	tableEnd   = "<!-- end of the fields -->\n"
)

// oursOnly is what a comment says of a field that the reference does not have.
const oursOnly = "none, ours only"

// howToDocument is the advice for the author of a field.
const howToDocument = `End the comment of the field with what differs from the reference plugin's field of that name, as one of
	// Reference: same.
	// Reference: none, ours only.
	// Reference: does not look at IPv6.       (or whatever it does otherwise)
and give a default that the value of Conf() does not show with "Default: ..." before it. Then run
	`

// Tables compares the table in docs/plugins/NAME.md of each plugin with the code, or writes it. Every field must
// say how the reference differs. pkg is the package of the test, which has the flag -update.
func Tables(t *testing.T, plugins []*plugin.Plugin, pkg string, update bool) {
	t.Helper()
	docs, command := Comments(t, plugins), "go test "+pkg+" -run TestField -update"
	for _, p := range plugins {
		if p.Conf == nil {
			continue
		}
		w := writer{plugin: p, command: command, seen: map[string]bool{}}
		if w.add(t, fields.Of(p.Conf(), docs), ""); len(w.rows) > 0 {
			w.page(t, update)
		}
	}
}

// writer makes the table of one plugin.
type writer struct {
	plugin  *plugin.Plugin
	command string
	rows    []string
	seen    map[string]bool // the Go paths of the fields above
}

// add lists fields by their paths, depth first. If a type occurs several times, it has rows only at
// the first place.
func (w *writer) add(t *testing.T, list []fields.Field, path string) {
	t.Helper()
	for _, f := range list {
		at := path + f.Key
		foreign := strings.HasPrefix(f.Name, "spec.")
		switch {
		case foreign || w.seen[f.Name]:
			continue // the protocol's own field, or listed before
		case !worded(f.Reference):
			t.Errorf("plugin %s: the comment of %s (%s) says %q of the reference.\n%s%s", w.plugin.Name, f.Name, at, f.Reference, howToDocument, w.command)
		case f.Reference != "" && f.Doc != "":
			w.rows = append(w.rows, row(at, f))
		case len(f.Fields) == 0 || strings.HasPrefix(f.Type, "list"):
			t.Errorf("plugin %s: the comment of %s (%s) does not say what it does, or what differs from the reference.\n%s%s",
				w.plugin.Name, f.Name, at, howToDocument, w.command)
		}
		w.seen[f.Name] = true
		if strings.HasPrefix(f.Type, "list") {
			at += "[]"
		}
		w.add(t, f.Fields, at+".")
	}
}

// worded reports whether what a comment says of a reference without the field has one of the usual forms.
func worded(reference string) bool {
	text := strings.ToLower(reference)
	lacks := strings.HasPrefix(text, "none") || strings.HasPrefix(text, "no reference") || strings.HasPrefix(text, "there is no") || strings.Contains(text, "ours")
	return !lacks || strings.HasPrefix(reference, oursOnly) || strings.HasPrefix(reference, "none, it ")
}

func row(at string, f fields.Field) string {
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

// page compares the table on the plugin's page, or writes it.
func (w *writer) page(t *testing.T, update bool) {
	t.Helper()
	file, start := filepath.Join(root(t), "docs/plugins", w.plugin.Name+".md"), fmt.Sprintf(tableStart, w.command)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Errorf("%v: write the page of plugin %s", err, w.plugin.Name)
		return
	}
	head, rest, found := strings.Cut(string(data), start)
	_, tail, ended := strings.Cut(rest, tableEnd)
	if !found || !ended {
		t.Errorf("%s: no place for the table of fields; put these two lines there and run %s:\n%s%s", file, w.command, start, tableEnd)
		return
	}
	table := "| field | type, default | ours | the reference, where it differs |\n| --- | --- | --- | --- |\n" + strings.Join(w.rows, "")
	Golden(t, file, head+start+fmt.Sprintf("\n%s\n", table)+tableEnd+tail, update)
}

// Golden compares text with a file, or writes it.
func Golden(t *testing.T, file, text string, update bool) {
	t.Helper()
	if update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != text {
		t.Errorf("%s is not what the source says now; in the directory of this test, run go test -run '^%s$' -update", file, t.Name())
	}
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := reftest.Root()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
