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

// NotFoundError reports that no file of a directory holds a network of a name.
type NotFoundError struct{ Dir, Name string }

func (e *NotFoundError) Error() string {
	return fmt.Sprintf("no net configuration with name %q in %s", e.Name, e.Dir)
}

// NoConfigsFoundError reports that a directory holds no configuration at all.
type NoConfigsFoundError struct{ Dir string }

func (e *NoConfigsFoundError) Error() string {
	return "no net configurations found in " + e.Dir
}

// FileError names a broken configuration file, with the reason.
type FileError struct {
	File string
	Err  error
}

func (e *FileError) Error() string {
	var at *syntaxError
	if errors.As(e.Err, &at) { // it names the file
		return at.Error()
	}
	return fmt.Sprintf("read %s: %v", e.File, e.Err)
}

// syntaxError is a file that is not valid JSON, with line and column.
type syntaxError struct{ cause *spec.Error }

func (e *syntaxError) Error() string { return e.cause.Msg }

func (e *syntaxError) Unwrap() error { return e.cause }

// located returns the place of a file's syntax error.
func located(file string, data []byte, err error) error {
	if text, ok := jsonat.Syntax(data, err); ok {
		return &syntaxError{spec.Errorf(spec.CodeDecoding, "%s:%s", file, text)}
	}
	return err
}

// Unwrap returns the cause.
func (e *FileError) Unwrap() error { return e.Err }

// Dir is the content of a configuration directory.
type Dir struct {
	Path   string
	Lists  []*List      // in their order of precedence: .conflist, then .conf and .json, by name
	Broken []*FileError // files that cannot be read; they do not affect the others
}

// LoadDir reads every configuration of a directory. A directory that does not
// exist is empty.
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

// Find returns the first list of a name. A broken file that names this network is the
// error, since a later file must not take its place. With a NotFoundError, Find also
// reports broken files whose name cannot be read.
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

// shadowed reports whether a broken file of the same network precedes l.
func (d *Dir) shadowed(l *List) bool {
	return slices.ContainsFunc(d.Broken, func(b *FileError) bool {
		before := rank(b.File) < rank(l.File) || rank(b.File) == rank(l.File) && b.File < l.File
		return before && nameOf(b.File) == l.Name
	})
}

// rank orders the formats: lists come before single plugins.
func rank(file string) int {
	if filepath.Ext(file) == ".conflist" {
		return 0
	}
	return 1
}

// nameOf reads only the name of a network from a broken file.
func nameOf(file string) string {
	var head struct {
		Name string `json:"name"`
	}
	data, err := durable.ReadConf(file)
	if err != nil {
		return ""
	}
	_ = json.Unmarshal(data, &head) // a wrong type elsewhere leaves the name readable
	return head.Name
}

// LoadFile reads one configuration: a list (.conflist) with the plugins that
// other files add to it, or a single plugin (any other name). Each is a regular
// file, or a symbolic link to one, of 1 MiB at most.
func LoadFile(file string) (*List, error) {
	data, err := durable.ReadConf(file)
	if err != nil {
		return nil, fmt.Errorf("error reading %s: %w", file, err)
	}
	return ParseFile(file, data)
}

// ParseFile is LoadFile of data that was read from file already, such as a pipe.
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

// stands refuses a list whose file was removed or replaced since it was read, if the file
// decides: nothing would know how to remove what an ADD makes of it, or it would mix with
// what the new file makes.
func (rt *Runtime) stands(l *List) error {
	if l.source == nil || !rt.FileDecides {
		return nil
	}
	if st, err := os.Stat(l.File); err == nil && !st.Mode().IsRegular() {
		return nil // a pipe, which is empty by now
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

// aggregate appends the plugins of <dir>/<network name>/*.conf, by file name.
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

// files lists the files of dir with one of the extensions, sorted. A directory
// that is not there has none.
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
