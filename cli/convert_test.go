// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cli/netfile"
)

// examples returns the configurations in the repository's pages and examples, and in the scripts of
// this package. Some are lists, others are one plugin.
func examples(t *testing.T) (list []string) {
	t.Helper()
	list = append(list, defaultConfig)
	for _, dir := range []string{"../README.md", "../docs", "../examples", "testdata"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			data, err := os.ReadFile(path)
			switch filepath.Ext(path) {
			case ".conflist", ".conf", ".json":
				list = append(list, string(data))
			case ".md":
				for i, text := range strings.Split(string(data), "\n```") {
					if _, body, _ := strings.Cut(text, "\n"); i%2 == 1 {
						list = append(list, body)
					}
				}
			case ".txtar":
				for _, f := range txtar.Parse(data).Files {
					list = append(list, string(f.Data))
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return list
}

// configuration completes an example, so that a runtime could use it. It returns nil for a text that
// is no configuration.
func configuration(text string) (data []byte, plugins []any) {
	var conf map[string]any
	if json.Unmarshal([]byte(text), &conf) != nil || conf["type"] == nil && conf["plugins"] == nil {
		return nil, nil
	}
	if conf["name"] == nil {
		conf["name"] = "example"
	}
	if conf["cniVersion"] == nil {
		conf["cniVersion"] = "1.0.0"
	}
	data, err := json.Marshal(conf)
	if err != nil {
		return nil, nil
	}
	plugins, _ = conf["plugins"].([]any)
	if conf["type"] != nil {
		plugins = []any{conf}
	}
	return data, plugins
}

// TestConvertExamples converts every example into one plugin and back. Nothing is lost or added. An
// example that has such a plugin is converted the other way first.
func TestConvertExamples(t *testing.T) {
	there, back := 0, 0
	for _, text := range examples(t) {
		data, plugins := configuration(text)
		if one, err := convert(data, inOne); err == nil {
			there++
			again := converted(t, one, separate)
			if got := again["plugins"].([]any); !reflect.DeepEqual(unwrapped(got), unwrapped(plugins)) {
				t.Errorf("there and back:\n%v\nwas\n%v", got, plugins)
			}
			if got, want := others(t, again), others(t, one); !reflect.DeepEqual(got, want) {
				t.Errorf("keys beside plugins: %v, %v", got, want)
			}
		} else if apart, err := convert(data, separate); err == nil {
			back++
			one := converted(t, apart, inOne)
			whole := len(plugins) == 1 && plugins[0].(map[string]any)["name"] == nil // a list, which has nothing else
			if got := one["plugins"]; whole && !reflect.DeepEqual(got, plugins) {
				t.Errorf("back and there:\n%v\nwas\n%v", got, plugins)
			}
			if got, want := converted(t, one, separate), decoded(t, apart); !reflect.DeepEqual(got, want) {
				t.Errorf("back, there and back:\n%v\nwas\n%v", got, want)
			}
		}
	}
	if there < 40 || back < 3 {
		t.Errorf("only %d examples were converted there and back, and %d back and there", there, back)
	}
}

// converted converts a decoded configuration.
func converted(t *testing.T, from map[string]any, to func([]json.RawMessage) ([]json.RawMessage, error)) map[string]any {
	t.Helper()
	text, err := json.Marshal(from)
	if err != nil {
		t.Fatal(err)
	}
	again, err := convert(text, to)
	if err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	return decoded(t, again)
}

// decoded returns a configuration as it is read from a file.
func decoded(t *testing.T, conf map[string]any) (out map[string]any) {
	t.Helper()
	text, err := json.Marshal(conf)
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func others(t *testing.T, conf map[string]any) map[string]any {
	t.Helper()
	out := decoded(t, conf)
	delete(out, "plugins")
	return out
}

// unwrapped returns plugins without the capabilities of wrap, to which convert adds those of the
// plugin inside.
func unwrapped(plugins []any) []any {
	plugins = slices.Clone(plugins)
	for i, p := range plugins {
		conf, ok := p.(map[string]any)
		if !ok || conf["type"] != wrapType {
			continue
		}
		copied := map[string]any{}
		for key, value := range conf {
			switch inner, nested := value.(map[string]any); {
			case strings.EqualFold(key, "capabilities"):
			case key == "plugin" && nested:
				copied[key] = unwrapped([]any{inner})[0]
			default:
				copied[key] = value
			}
		}
		plugins[i] = copied
	}
	return plugins
}

// TestFormsMeanTheSame checks that the commands read one network from both forms.
func TestFormsMeanTheSame(t *testing.T) {
	for _, text := range examples(t) {
		data, _ := configuration(text)
		one, err := convert(data, inOne)
		if err != nil {
			continue
		}
		a, b := described(t, one), described(t, converted(t, one, separate))
		a.Plugins = a.Plugins[1:]
		if !reflect.DeepEqual(a, b) {
			t.Errorf("%s:\n%+v\nin one process, separate\n%+v", data, a, b)
		}
	}
}

func described(t *testing.T, conf map[string]any) netfile.Info {
	t.Helper()
	text, err := json.Marshal(conf)
	if err != nil {
		t.Fatal(err)
	}
	l, err := chain.ParseList(text)
	if err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	return netfile.Describe(l)
}
