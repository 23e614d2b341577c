// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/jsonat"
	"github.com/patchbay-net/patchbay/spec"
)

// ErrNoNetwork means that no file defines the network. NotFoundError and NoConfigsFoundError match it.
var ErrNoNetwork = errors.New("no such network")

// NotFoundError means that no file of the directory defines the network.
type NotFoundError struct{ Dir, Name string }

func (e *NotFoundError) Error() string {
	return fmt.Sprintf("no net configuration with name %q in %s", e.Name, e.Dir)
}

// Is reports whether target is ErrNoNetwork.
func (e *NotFoundError) Is(target error) bool { return target == ErrNoNetwork }

// NoConfigsFoundError means that the directory holds no configuration at all.
type NoConfigsFoundError struct{ Dir string }

func (e *NoConfigsFoundError) Error() string {
	return "no net configurations found in " + e.Dir
}

// Is reports whether target is ErrNoNetwork.
func (e *NoConfigsFoundError) Is(target error) bool { return target == ErrNoNetwork }

// FileError is the error of a broken configuration file.
type FileError struct {
	File string
	Err  error
}

func (e *FileError) Error() string {
	var at *syntaxError
	if errors.As(e.Err, &at) { // the syntax error names the file already
		return at.Error()
	}
	return fmt.Sprintf("read %s: %v", e.File, e.Err)
}

// syntaxError means that a file is not valid JSON. Its text names line and column.
type syntaxError struct{ cause *spec.Error }

func (e *syntaxError) Error() string { return e.cause.Msg }

func (e *syntaxError) Unwrap() error { return e.cause }

// located adds file, line and column to a JSON syntax error.
func located(file string, data []byte, err error) error {
	if text, ok := jsonat.Syntax(data, err); ok {
		return &syntaxError{spec.Errorf(spec.CodeDecoding, "%s:%s", file, text)}
	}
	return err
}

// Unwrap returns the cause.
func (e *FileError) Unwrap() error { return e.Err }

// Dir holds what LoadDir read from a configuration directory.
type Dir struct {
	Path   string
	Lists  []*List      // in order of precedence: .conflist before .conf and .json, then by file name
	Broken []*FileError // files that cannot be read; the other files work without them
}

// LoadDir reads every configuration of a directory. LoadDir treats a missing directory like an
// empty one.
func LoadDir(dir string) (*Dir, error) {
	d := &Dir{Path: dir}
	lists, err := files(dir, ".conflist")
	if err != nil {
		return nil, err
	}
	singles, err := files(dir, ".conf", ".json")
	if err != nil {
		return nil, err
	}
	for _, file := range append(lists, singles...) {
		list, err := LoadFile(file)
		if err != nil {
			d.Broken = append(d.Broken, &FileError{file, err})
			continue
		}
		d.Lists = append(d.Lists, list)
	}
	return d, nil
}

// Find returns the first list with the given name. If an earlier file is broken and has this
// name, Find returns that file's error, because a later file must not take its place. If no file
// has the name, Find returns a NotFoundError, together with the errors of broken files whose
// network name cannot be read.
func (d *Dir) Find(name string) (*List, error) {
	for _, l := range d.Lists {
		if l.Name == name && !d.shadowed(l) {
			return l, nil
		}
	}
	for _, b := range d.Broken {
		if nameOf(b.File) == name {
			return nil, b
		}
	}
	if len(d.Lists) == 0 && len(d.Broken) == 0 {
		return nil, &NoConfigsFoundError{d.Path}
	}
	errs := []error{&NotFoundError{d.Path, name}}
	for _, b := range d.Broken {
		errs = append(errs, b)
	}
	return nil, errors.Join(errs...)
}

// First returns the list of the first file, by the files' names alone. Container runtimes use that network as the
// default; the specification names none. If the first file is broken, First returns its error, because a later file must
// not take its place. If there is no file, the error is a NoConfigsFoundError.
func (d *Dir) First() (list *List, err error) {
	file := ""
	for _, l := range d.Lists {
		if list == nil || l.File < file {
			list, file = l, l.File
		}
	}
	for _, b := range d.Broken {
		if file == "" || b.File < file {
			list, file, err = nil, b.File, b
		}
	}
	if file == "" {
		return nil, &NoConfigsFoundError{d.Path}
	}
	return list, err
}

// shadowed reports whether a broken file of the same network comes earlier than the file of l.
func (d *Dir) shadowed(l *List) bool {
	return slices.ContainsFunc(d.Broken, func(b *FileError) bool {
		before := rank(b.File) < rank(l.File) || rank(b.File) == rank(l.File) && b.File < l.File
		return before && nameOf(b.File) == l.Name
	})
}

// rank orders files by format: files with a list come before files with a single plugin.
func rank(file string) int {
	if filepath.Ext(file) == ".conflist" {
		return 0
	}
	return 1
}

// nameOf reads the network's name from a broken file.
func nameOf(file string) string {
	var head struct {
		Name string `json:"name"`
	}
	data, err := durable.ReadConf(file)
	if err != nil {
		return ""
	}
	_ = json.Unmarshal(data, &head) // the name is readable even if another field has the wrong type
	return head.Name
}

// Load finds the configuration of a network: in the directory of configurations, or as WithLoad says. Load reports broken
// files of other networks through WithWarn.
func (rt *Runtime) Load(name string) (*List, error) {
	if rt.loadNetwork != nil {
		return rt.loadNetwork(name)
	}
	return rt.load(func(d *Dir) (*List, error) { return d.Find(name) })
}

// Default reads the configuration of the default network: the one of WithDefaultNetwork, or else of the first file
// (Dir.First). Default reports other broken files through WithWarn.
func (rt *Runtime) Default() (*List, error) {
	if rt.defaultNetwork != "" {
		return rt.Load(rt.defaultNetwork)
	}
	return rt.load((*Dir).First)
}

func (rt *Runtime) load(choose func(*Dir) (*List, error)) (*List, error) {
	d, err := LoadDir(rt.confDir)
	if err != nil {
		return nil, err
	}
	list, err := choose(d)
	if err != nil {
		return nil, err
	}
	for _, b := range d.Broken {
		rt.warn(b)
	}
	return list, nil
}

// LoadFile reads one configuration. A .conflist file holds a list, to which other files may add
// plugins. Any other file holds a single plugin. The file must be a regular file, or a symbolic
// link to one, of at most 1 MiB.
func LoadFile(file string) (*List, error) {
	data, err := durable.ReadConf(file)
	if err != nil {
		return nil, fmt.Errorf("error reading %s: %w", file, err)
	}
	return ParseFile(file, data)
}

// ParseFile works like LoadFile on data that the caller has already read from file, for
// example from a pipe.
func ParseFile(file string, data []byte) (*List, error) {
	if rank(file) > 0 {
		l, err := ParseSingle(data)
		if err != nil {
			return nil, located(file, data, err)
		}
		l.File, l.source = file, data
		return l, nil
	}
	l, err := ParseList(data)
	if err != nil {
		return nil, located(file, data, err)
	}
	l.File, l.source = file, data
	return l, l.aggregate(filepath.Dir(file))
}

// checkSource refuses a list whose file was removed or changed after it was read. It does so only if
// WithFileDecides is set. If the file was removed, nothing could later remove what an ADD makes. If
// the file was changed, old and new configuration would mix.
func (rt *Runtime) checkSource(l *List) error {
	if l.source == nil || !rt.fileDecides {
		return nil
	}
	if st, err := os.Stat(l.File); err == nil && !st.Mode().IsRegular() {
		return nil // the file was a pipe, which is empty when read again
	}
	now, err := durable.ReadConf(l.File)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return spec.Errorf(spec.CodeTryAgain, "network %s was removed meanwhile", l.Name).WithDetails("%s is gone", l.File)
	case err != nil:
		return fmt.Errorf("look again at network %s: %w", l.Name, err)
	case !bytes.Equal(now, l.source):
		return spec.Errorf(spec.CodeTryAgain, "network %s was changed meanwhile", l.Name).WithDetails("%s holds another configuration than the one that was read; read it again", l.File)
	}
	return nil
}

// aggregate appends the plugins of <dir>/<network name>/*.conf, sorted by file name.
func (l *List) aggregate(dir string) error {
	if !l.LoadOnlyInlinedPlugins {
		if err := l.addFiles(filepath.Join(dir, l.Name)); err != nil {
			return err
		}
	}
	if len(l.Plugins) == 0 {
		return errors.New("no plugin configs found")
	}
	return nil
}

func (l *List) addFiles(dir string) error {
	names, err := files(dir, ".conf")
	if err != nil {
		return fmt.Errorf("failed to read plugin config files in %s: %w", dir, err)
	}
	for _, name := range names {
		data, err := durable.ReadConf(name)
		if err != nil {
			return fmt.Errorf("error reading %s: %w", name, err)
		}
		p, err := ParsePlugin(data)
		if err != nil {
			return &FileError{name, located(name, data, err)}
		}
		l.Plugins = append(l.Plugins, *p)
	}
	if len(names) == 0 {
		return nil
	}
	return l.inline()
}

// files lists the files in dir that have one of the extensions, sorted. files treats a missing
// directory like an empty one.
func files(dir string, extensions ...string) (out []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if !e.IsDir() && slices.Contains(extensions, filepath.Ext(e.Name())) {
			out = append(out, filepath.Join(dir, e.Name()))
		}
	}
	return out, nil
}
