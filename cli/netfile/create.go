// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/nl"
)

// Maker creates networks in a directory.
type Maker struct {
	Dir    string
	Host   *nl.Conn
	Random io.Reader
	Warn   func(error)

	// Judge returns why a new network cannot work; nil skips the check.
	Judge func(*chain.List) error
}

// Made is a network that was written, or with dry would be.
type Made struct {
	Name, File string
	Text       []byte
}

// Create writes the file of a new network. With dry it only returns the text. It locks the
// directory, so that two at a time do not choose the same subnet.
func (m *Maker) Create(ctx context.Context, w Request, dry bool) (*Made, error) {
	if _, err := read(w); err != nil { // before a directory is made
		return nil, err
	}
	if dry {
		return m.plan(w)
	}
	if err := os.MkdirAll(m.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("make directory of networks: %w", err)
	}
	unlock, err := durable.LockDir(ctx, m.Dir) // keeps other commands from changing the directory's networks
	if err != nil {
		return nil, err
	}
	defer unlock()
	made, err := m.plan(w)
	if err != nil {
		return nil, err
	}
	if err := durable.WriteSynced(made.File, made.Text, 0o644); err != nil {
		return nil, fmt.Errorf("write network: %w", err)
	}
	return made, nil
}

// TakeBack removes the file of a network that Create made, unless it has been removed or
// changed since.
func (m *Maker) TakeBack(ctx context.Context, made *Made) error {
	unlock, err := durable.LockDir(ctx, m.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	if now, err := durable.ReadConf(made.File); err != nil || !bytes.Equal(now, made.Text) {
		return nil //nolint:nilerr // the file is not the one that was made
	}
	return os.Remove(made.File)
}

// plan reads what is in use and computes the file.
func (m *Maker) plan(w Request) (*Made, error) {
	dir, err := chain.LoadDir(m.Dir)
	if err != nil {
		return nil, fmt.Errorf("list networks: %w", err)
	}
	if err := free(dir, w.Name); err != nil {
		return nil, err
	}
	for _, b := range dir.Broken {
		m.Warn(fmt.Errorf("the addresses of this file are unknown, the new network may overlap them: %w", b))
	}
	taken, err := Look(dir, m.Host)
	if err != nil {
		return nil, err
	}
	text, warnings, err := New(w, taken, m.Random)
	if err != nil {
		return nil, err
	}
	for _, text := range warnings {
		m.Warn(errors.New(text))
	}
	l, err := chain.ParseList(text)
	if err == nil && m.Judge != nil {
		err = m.Judge(l)
	}
	if err != nil {
		return nil, err
	}
	made := &Made{Name: w.Name, Text: text}
	made.File, err = m.file(dir, w.Name)
	return made, err
}

// free checks that no network has the name.
func free(dir *chain.Dir, name string) error {
	l, err := dir.Find(name)
	switch {
	case l != nil:
		return fmt.Errorf("it exists already: %s", l.File)
	case Missing(err):
		return nil
	}
	return fmt.Errorf("a broken file has this name: %w", err)
}

// Missing reports whether no file has a network, as opposed to a broken file.
func Missing(err error) bool {
	var missing *chain.NotFoundError
	var none *chain.NoConfigsFoundError
	return errors.As(err, &missing) || errors.As(err, &none)
}

// file chooses the file's name. Runtimes use the first network of a directory, so a new
// one must not come before existing ones.
func (m *Maker) file(dir *chain.Dir, name string) (string, error) {
	var names []string
	for _, l := range dir.Lists {
		names = append(names, filepath.Base(l.File))
	}
	for _, b := range dir.Broken {
		names = append(names, filepath.Base(b.File))
	}
	slices.Sort(names)
	for _, base := range candidates(name) {
		if len(names) == 0 || base > names[0] {
			return filepath.Join(m.Dir, base), m.absent(base)
		}
	}
	base := candidates(name)[0]
	m.Warn(fmt.Errorf("%s comes before %s: runtimes that use the first network now use this one", base, names[0]))
	return filepath.Join(m.Dir, base), m.absent(base)
}

// candidates are names of files in the order of preference.
func candidates(name string) (list []string) {
	for n := 50; n <= 99; n++ {
		list = append(list, fmt.Sprintf("%d-%s.conflist", n, name))
	}
	return append(list, name+".conflist")
}

// absent checks that no such file exists: an existing one is another network's.
func (m *Maker) absent(base string) error {
	_, err := os.Lstat(filepath.Join(m.Dir, base))
	switch {
	case err == nil:
		return fmt.Errorf("the file %s exists already", filepath.Join(m.Dir, base))
	case errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return err
}
