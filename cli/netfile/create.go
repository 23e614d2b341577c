// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package netfile writes the file of a network from a few options, describes such a file, and
// removes a network. It implements `patchbay network create`, `ls`, `inspect` and `rm`.
//
// New is a pure function. From a request and from what is already used, it computes the
// configuration. The file has one plugin of type patchbay, which runs ordinary plugins in one
// process (one that makes the interface, portmap, firewall), or lists these plugins themselves.
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

	// Judge returns an error if a new network cannot work. Judge may be nil; then nothing checks this.
	Judge func(*chain.List) error
}

// Made describes a network's file that was written, or that a dry run would write.
type Made struct {
	Name, File string
	Text       []byte
}

// Create writes the file of a new network. If dry is set, it only returns the text. It locks
// the directory, so that two processes cannot choose the same subnet.
func (m *Maker) Create(ctx context.Context, w Request, dry bool) (*Made, error) {
	if _, err := read(w); err != nil { // checked before the directory is created
		return nil, err
	}
	if dry {
		return m.plan(w)
	}
	if err := os.MkdirAll(m.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("make directory of networks: %w", err)
	}
	unlock, err := durable.LockDir(ctx, m.Dir) // other commands cannot change the networks meanwhile
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

// Rollback removes a file that Create wrote, unless the file has been removed or changed since.
func (m *Maker) Rollback(ctx context.Context, made *Made) error {
	unlock, err := durable.LockDir(ctx, m.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	if now, err := durable.ReadConf(made.File); err != nil || !bytes.Equal(now, made.Text) {
		return nil //nolint:nilerr // another file has the name now
	}
	return os.Remove(made.File)
}

// plan reads what is in use, and makes the text of the file.
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
	inUse, err := ReadInUse(dir, m.Host)
	if err != nil {
		return nil, err
	}
	text, warnings, err := New(w, inUse, m.Random)
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

// free returns an error if a network with this name exists.
func free(dir *chain.Dir, name string) error {
	l, err := dir.Find(name)
	switch {
	case l != nil:
		return fmt.Errorf("it exists already: %s", l.File)
	case errors.Is(err, chain.ErrNoNetwork):
		return nil
	}
	return fmt.Errorf("a broken file has this name: %w", err)
}

// file chooses the name of the file. Runtimes use the first network of a directory, so the new
// file must sort after existing ones.
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

// candidates returns the possible names of the file, the preferred one first.
func candidates(name string) (list []string) {
	for n := 50; n <= 99; n++ {
		list = append(list, fmt.Sprintf("%d-%s.conflist", n, name))
	}
	return append(list, name+".conflist")
}

// absent returns an error if the file exists, because it belongs to another network.
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
