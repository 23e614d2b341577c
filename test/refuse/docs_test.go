// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package refuse

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/nftables"

	"github.com/patchbay-net/patchbay/daemons/cnm/cnmcli"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/all"
	"github.com/patchbay-net/patchbay/spec"
)

func page(t *testing.T, p *plugin.Plugin) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "plugins", p.Name+".md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestEveryFieldIsDocumented looks for each JSON name of a configuration on its plugin's
// page.
func TestEveryFieldIsDocumented(t *testing.T) {
	for _, p := range append(all.Plugins(), cnmcli.Plugins()...) {
		if p.Conf == nil {
			continue
		}
		text := page(t, p)
		for _, name := range names(reflect.TypeOf(p.Conf())) {
			if !strings.Contains(text, "`"+name+"`") && !strings.Contains(text, `"`+name+`"`) && !strings.Contains(text, "."+name) {
				t.Errorf("docs/plugins/%s.md does not tell of %q", p.Name, name)
			}
		}
	}
}

// names lists the JSON names of a configuration, without the sections of the protocol and
// the fields of the specification's own types.
func names(typ reflect.Type) (out []string) {
	for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
		typ = typ.Elem()
	}
	if typ.Kind() != reflect.Struct || strings.HasSuffix(typ.PkgPath(), "/spec") {
		return nil
	}
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch name {
		case "runtimeConfig", "args", "cni", "ipam", "type", "dns", "":
		default:
			out = append(out, name)
		}
		if f.IsExported() {
			out = append(out, names(f.Type)...)
		}
	}
	return out
}

// fence is a block of code on a page.
type fence struct{ lang, text string }

// fences lists the code blocks of a page. Fences start in column 1.
func fences(page string) (list []fence) {
	var open *fence
	for line := range strings.Lines(page) {
		lang, edge := strings.CutPrefix(strings.TrimRight(line, "\n"), "```")
		switch {
		case edge && open == nil:
			open = &fence{lang: lang}
		case edge:
			list, open = append(list, *open), nil
		case open != nil:
			open.text += line
		}
	}
	return list
}

// TestEveryExampleIsRun checks that each code block is JSON or shell, which TestExamples runs, or
// text that is no configuration.
func TestEveryExampleIsRun(t *testing.T) {
	pages, err := filepath.Glob("../../docs/plugins/*.md")
	if err != nil || len(pages) < len(all.Plugins()) {
		t.Fatalf("%d pages for %d plugins, %v", len(pages), len(all.Plugins()), err)
	}
	for _, path := range pages {
		name := strings.TrimSuffix(filepath.Base(path), ".md")
		if all.Find(name) == nil && cnmcli.Find(name) == nil {
			t.Errorf("%s: no plugin %s, so nothing runs its examples", path, name)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range fences(string(text)) {
			var conf struct {
				Type, Plugins, IPAM any
			}
			runs := f.lang == "json" || f.lang == "sh"
			isConf := json.Unmarshal([]byte(f.text), &conf) == nil && (conf.Type != nil || conf.Plugins != nil || conf.IPAM != nil)
			if !runs && (f.lang != "text" || isConf) {
				t.Errorf("%s: a block marked %q is not run; mark a configuration ```json, commands ```sh, and what is neither ```text:\n%s", path, f.lang, f.text)
			}
		}
	}
}

// TestExamples attaches, checks and detaches with every JSON example, also by the other form of its
// network (forms). For the plugins of patchbay-cnm, daemons/cnm/cnmcli does this, because it has a driver. Shell commands run while the
// page's first example is attached.
func TestExamples(t *testing.T) {
	t.Cleanup(func() { deleteTables(t) })
	for _, p := range all.Plugins() {
		first, n := "", 0
		for _, f := range fences(page(t, p)) {
			commands := ""
			switch f.lang {
			case "json":
				n++
				first = cmp.Or(first, f.text)
			case "sh":
				commands, f.text = f.text, first
			default:
				continue
			}
			t.Run(fmt.Sprintf("%s-%d%s", p.Name, n, f.lang), func(t *testing.T) { example(t, p, f.text, commands) })
		}
		if n == 0 {
			t.Errorf("docs/plugins/%s.md has no example", p.Name)
		}
	}
}

// deleteTables deletes what stays in nftables by design when the attachments are gone. The tests after
// this one list all of nftables after each of many hundred calls.
func deleteTables(t *testing.T) {
	t.Helper()
	c, err := nftables.New()
	must(t, err)
	tables, err := c.ListTables()
	must(t, err)
	for _, table := range tables {
		c.DelTable(table)
	}
	must(t, c.Flush())
}

func example(t *testing.T, p *plugin.Plugin, text, commands string) {
	object := inOne(t, p, text)
	maps.Copy(object, map[string]any{"cniVersion": "1.1.0", "name": "refuse"})
	ns := nettest.NewNS(t, "example")
	result := step(t, spec.Add, ns, object)
	if commands != "" {
		shell(t, commands)
	}
	object["prevResult"] = json.RawMessage(result)
	step(t, spec.Check, ns, object)
	step(t, spec.Del, ns, object)
	if delete(object, "prevResult"); commands == "" {
		forms(t, ns, object)
	}
}

// inOne prepares the node for an example, and returns the plugin of type patchbay that runs its chain.
func inOne(t *testing.T, p *plugin.Plugin, text string) (object map[string]any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &object); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	stage(t, p, object)
	list, ok := object["plugins"].([]any)
	if !ok || object["type"] != nil {
		return map[string]any{"type": "patchbay", "plugins": chainOf(p, object)}
	}
	if object = list[0].(map[string]any); object["type"] != "patchbay" {
		object = map[string]any{"type": "patchbay", "plugins": list}
	}
	return object
}

// chainOf adds to an example the plugins that its chain needs.
func chainOf(p *plugin.Plugin, object map[string]any) []any {
	first := map[string]any{"type": "bridge", "bridge": "docs0", "ipam": map[string]any{"type": "host-local", "subnet": "10.65.0.0/24"}}
	switch p.Kind {
	case plugin.IPAM:
		first["ipam"] = object["ipam"]
		return []any{first}
	case plugin.Chained:
		return []any{first, object}
	}
	return []any{object}
}

// shell runs commands whose programs must be installed.
func shell(t *testing.T, commands string) {
	t.Helper()
	for line := range strings.Lines(commands) {
		if words := strings.Fields(line); len(words) > 0 {
			nettest.Need(t, nettest.Program(words[0]))
		}
	}
	if out, err := exec.Command("sh", "-ec", commands).CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s%s", err, commands, out)
	}
}

func step(t *testing.T, verb spec.Verb, ns string, object map[string]any) []byte {
	t.Helper()
	data, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	out, stderr, err := run("patchbay", call(verb, ns, string(data)))
	if err != nil {
		t.Fatalf("%s: %v\n%s", verb, err, stderr)
	}
	return out
}
