// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cli/doctor"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/all"
)

// judge returns what `patchbay network validate` would refuse, and what it would warn about.
func judge(t *testing.T, list string) (refused, warned []string) {
	t.Helper()
	l, err := chain.ParseList([]byte(list))
	if err != nil {
		return []string{err.Error()}, nil
	}
	s := plugin.NewSession(all.Plugins())
	defer s.Close()
	s.Paths.Etc = t.TempDir() // without this machine's allow list
	rt := chain.New(chain.WithPath("/nonexistent"), chain.WithInvoker(&plugin.Builtin{NewSession: func() *plugin.Session { return plugin.NewSession(all.Plugins()) }}))
	for _, f := range doctor.Validate(context.Background(), rt, s, l) {
		if f.Level == doctor.Warning {
			warned = append(warned, f.Error())
			continue
		}
		refused = append(refused, f.Error())
	}
	return refused, warned
}

// list is a network of plugins, written without the quotes around keys and words.
func list(plugins string) string {
	return `{"cniVersion":"1.1.0","name":"n","plugins":[` + quoted(plugins) + `]}`
}

var word = regexp.MustCompile(`'[^']*'|[A-Za-z_][A-Za-z0-9_-]*`)

// quoted makes JSON of the tables' shorthand: 'x' and plain words are strings.
func quoted(s string) string {
	return word.ReplaceAllStringFunc(s, func(w string) string {
		if w == "true" || w == "false" || w == "null" {
			return w
		}
		return `"` + strings.Trim(w, "'") + `"`
	})
}

// definition is a name and its value. A line of only names is a network.
var definition = regexp.MustCompile(`^\$[a-z]+ [^=]`)

// tables reads a file of lines `= NAME`, `CONFIGURATION` and the expected message.
func tables(t *testing.T, file string, each func(line int, plugins, want string)) {
	f, err := os.Open(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // read only
	s := bufio.NewScanner(f)
	base := map[string]string{}
	for line := 1; s.Scan(); line++ {
		text := strings.TrimSpace(s.Text())
		name, rest, _ := strings.Cut(text, " ")
		switch {
		case text == "" || strings.HasPrefix(text, "#"):
		case definition.MatchString(text):
			base[name] = rest
		default:
			plugins, want, _ := strings.Cut(text, " => ")
			for strings.Contains(plugins, "$") {
				for name, text := range base {
					plugins = strings.ReplaceAll(plugins, name, text)
				}
			}
			each(line, plugins, want)
		}
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
}

// TestRefused checks configurations with which no ADD can work. Each line of the file was tried.
func TestRefused(t *testing.T) {
	tables(t, "refused.txt", func(line int, plugins, want string) {
		refused, _ := judge(t, list(plugins))
		if got := strings.Join(refused, "; "); !strings.Contains(got, want) || got == "" {
			t.Errorf("refused.txt:%d: %s: %q, not %q", line, plugins, got, want)
		}
	})
}

// TestWarned checks configurations that an ADD accepts, as the reference does, but that are
// surely mistakes.
func TestWarned(t *testing.T) {
	tables(t, "warned.txt", func(line int, plugins, want string) {
		refused, warned := judge(t, list(plugins))
		if got := strings.Join(warned, "; "); !strings.Contains(got, want) || got == "" || len(refused) > 0 {
			t.Errorf("warned.txt:%d: %s: warned %q, not %q; refused %q", line, plugins, got, want, refused)
		}
	})
}

// TestGood checks configurations without error or warning.
func TestGood(t *testing.T) {
	tables(t, "good.txt", func(line int, plugins, _ string) {
		if refused, warned := judge(t, list(plugins)); len(refused)+len(warned) > 0 {
			t.Errorf("good.txt:%d: %s: refused %q, warned %q", line, plugins, refused, warned)
		}
	})
}

// TestDocs judges every network in the documentation, which other tests attach.
func TestDocs(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	more, _ := filepath.Glob("../../docs/plugins/*.md") // the pattern is sound
	n := 0
	for _, file := range append(files, append(more, "../../README.md")...) {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range blocks(string(data)) {
			n++
			if refused, warned := judge(t, block); len(refused)+len(warned) > 0 {
				t.Errorf("%s: refused %q, warned %q\n%s", file, refused, warned, block)
			}
		}
	}
	if n < 20 {
		t.Errorf("only %d networks in the pages: they were not found", n)
	}
}

var fence = regexp.MustCompile("(?s)```json[^\n]*\n(.*?)```")

// blocks returns the networks of a page. blocks puts a section ipam into a bridge, and a chained
// plugin after a bridge. blocks leaves out patchbay-cnm's plugins, because they belong to another
// program.
func blocks(page string) (lists []string) {
	for _, m := range fence.FindAllStringSubmatch(page, -1) {
		text := m[1]
		var conf struct {
			Type    string
			IPAM    struct{ Type string }
			Plugins []json.RawMessage
		}
		if json.Unmarshal([]byte(text), &conf) != nil || strings.HasPrefix(conf.Type, "cnm") || conf.IPAM.Type == "cnm-ipam" {
			continue
		}
		switch {
		case conf.Type == "" && conf.Plugins != nil:
			lists = append(lists, text)
			continue
		case conf.Type == "" && conf.IPAM.Type != "":
			text = `{"type":"bridge",` + strings.TrimPrefix(text, "{")
		case conf.Type == "":
			continue
		}
		before := ""
		for _, p := range all.Plugins() {
			if p.Name == conf.Type && p.Kind == plugin.Chained {
				before = list("{type:bridge,ipam:{type:host-local,subnet:'10.9.0.0/24'}},")
			}
		}
		lists = append(lists, strings.TrimSuffix(cmp.Or(before, list("")), "]}")+text+"]}")
	}
	return lists
}
