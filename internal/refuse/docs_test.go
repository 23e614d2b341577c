// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package refuse

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/nettest"
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

// TestEveryFieldIsDocumented looks for each JSON name of a configuration on its
// plugin's page.
func TestEveryFieldIsDocumented(t *testing.T) {
	for _, p := range all.Plugins() {
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

// names lists the JSON names of a configuration, without what is not its own:
// the sections of the protocol, and fields of the specification's own types.
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

// TestExamples attaches, checks and detaches with every JSON example.
func TestExamples(t *testing.T) {
	for _, p := range all.Plugins() {
		parts := strings.Split(page(t, p), "```json\n")
		if len(parts) == 1 {
			t.Errorf("docs/plugins/%s.md has no example", p.Name)
		}
		for i, part := range parts[1:] {
			text, _, _ := strings.Cut(part, "```")
			t.Run(fmt.Sprintf("%s-%d", p.Name, i+1), func(t *testing.T) { example(t, p, text) })
		}
	}
}

func example(t *testing.T, p *plugin.Plugin, text string) {
	var object map[string]any
	if err := json.Unmarshal([]byte(text), &object); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	if list, ok := object["plugins"].([]any); ok && object["type"] == nil {
		if object = list[0].(map[string]any); object["type"] != "patchbay" {
			object = map[string]any{"type": "patchbay", "plugins": list}
		}
	} else {
		object = map[string]any{"type": "patchbay", "plugins": chainOf(p, object)}
	}
	maps.Copy(object, map[string]any{"cniVersion": "1.1.0", "name": "refuse"})
	ns := nettest.NewNS(t, "example")
	result := step(t, spec.Add, ns, object)
	object["prevResult"] = json.RawMessage(result)
	step(t, spec.Check, ns, object)
	step(t, spec.Del, ns, object)
}

// chainOf completes what an example leaves to the rest of a chain.
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
