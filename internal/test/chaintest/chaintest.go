// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package chaintest has a runtime for tests whose plugins record their calls. Each plugin is the test binary itself,
// under another name.
package chaintest

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/spec"
)

// Bench is a runtime with its own directories, whose plugins are recorders.
type Bench struct {
	*chain.Runtime
	Path                      []string
	ConfDir, CacheDir, RunDir string

	T      *testing.T
	Log    string // the file in which the plugins record their calls
	Events []chain.Event
	Warned []error
}

// New returns a bench whose CNI_PATH has the plugins rec1, rec2 and rec3.
func New(t *testing.T) *Bench {
	t.Helper()
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	b := &Bench{T: t, Log: in("log"), Path: []string{in("bin")}, ConfDir: in("conf"), CacheDir: in("cache"), RunDir: in("run")}
	t.Setenv("RECORD", b.Log)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(in("bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"rec1", "rec2", "rec3"} {
		if err := os.Symlink(self, filepath.Join(in("bin"), name)); err != nil {
			t.Fatal(err)
		}
	}
	b.Runtime = chain.New(
		chain.WithPath(b.Path...), chain.WithConfDir(b.ConfDir), chain.WithCacheDir(b.CacheDir), chain.WithRunDir(b.RunDir),
		chain.WithEvent(func(e chain.Event) { b.Events = append(b.Events, e) }),
		chain.WithWarn(func(err error) { b.Warned = append(b.Warned, err) }),
	)
	return b
}

// Set changes the runtime's options.
func (b *Bench) Set(opts ...chain.Option) { b.Runtime = b.With(opts...) }

// Calls reads what the recorders wrote since the last call.
func (b *Bench) Calls() (out []Call) {
	b.T.Helper()
	data, err := os.ReadFile(b.Log)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		b.T.Fatal(err)
	}
	_ = os.Remove(b.Log)
	for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		if line == "" {
			continue
		}
		var c Call
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			b.T.Fatal(err)
		}
		out = append(out, c)
	}
	return out
}

// Cached names the files of the cache.
func (b *Bench) Cached() string {
	entries, _ := os.ReadDir(filepath.Join(b.CacheDir, "results"))
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

// Order is "VERB plugin" of each call.
func Order(calls []Call) string {
	var words []string
	for _, c := range calls {
		words = append(words, c.Verb+" "+c.Plugin)
	}
	return strings.Join(words, ", ")
}

// List parses a list of plugins.
func List(t *testing.T, data string) *chain.List {
	t.Helper()
	l, err := chain.ParseList([]byte(data))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Versions returns the versions of the specification in which a runtime does something else, and with
// PATCHBAY_DRAW=all those that differ from one of these in a name only.
func Versions(t *testing.T) []string {
	t.Helper()
	if draw.All(t) {
		return spec.Versions()
	}
	return []string{"0.2.0", "0.3.1", "0.4.0", "1.1.0"}
}

// Write writes files into a directory.
func Write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, data := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
