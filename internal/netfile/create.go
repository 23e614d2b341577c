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
	"github.com/patchbay-net/patchbay/internal/atomicfile"
	"github.com/patchbay-net/patchbay/internal/flock"
	"github.com/patchbay-net/patchbay/internal/nl"
)

// Maker makes networks in a directory.
type Maker struct {
	Dir    string
	Host   *nl.Conn
	Random io.Reader
	Warn   func(error)

	// Judge says why a new network cannot work; nil asks nobody.
	Judge func(*chain.List) error
}

// Made is a network that was written, or would be.
type Made struct {
	Name, File string
	Text       []byte
}

// Create writes the file of a new network. With dry it only says what it would
// write. Two at a time do not choose the same subnet: the directory is locked.
func (m *Maker) Create(ctx context.Context, w Wish, dry bool) (*Made, error) {
	if _, err := read(w); err != nil { // before a directory is made
		return nil, err
	}
	if dry {
		return m.plan(w)
	}
	if err := os.MkdirAll(m.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("make directory of networks: %w", err)
	}
	unlock, err := flock.Dir(ctx, m.Dir) // other commands do not change the networks of the directory
	if err != nil {
		return nil, err
	}
	defer unlock()
	made, err := m.plan(w)
	if err != nil {
		return nil, err
	}
	if err := atomicfile.WriteSynced(made.File, made.Text, 0o644); err != nil {
		return nil, fmt.Errorf("write network: %w", err)
	}
	return made, nil
}

// TakeBack removes the file of a network that Create made, unless somebody has
// removed or changed it since.
func (m *Maker) TakeBack(ctx context.Context, made *Made) error {
	unlock, err := flock.Dir(ctx, m.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	if now, err := atomicfile.ReadConf(made.File); err != nil || !bytes.Equal(now, made.Text) {
		return nil //nolint:nilerr // what is there is not what was made
	}
	return os.Remove(made.File)
}

// plan looks around and computes the file.
func (m *Maker) plan(w Wish) (*Made, error) {
	dir, err := chain.LoadDir(m.Dir)
	if err != nil {
		return nil, fmt.Errorf("list networks: %w", err)
	}
	if err := free(dir, w.Name); err != nil {
		return nil, err
	}
	for _, b := range dir.Broken {
		m.Warn(fmt.Errorf("what this file uses is not known, the new network may overlap it: %w", b))
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
	if err := m.judge(text); err != nil {
		return nil, err
	}
	made := &Made{Name: w.Name, Text: text}
	made.File, err = m.file(dir, w.Name)
	return made, err
}

// judge has the text read as any other network's.
func (m *Maker) judge(text []byte) error {
	if m.Judge == nil {
		return nil
	}
	l, err := chain.ParseList(text)
	if err != nil {
		return err
	}
	return m.Judge(l)
}

// free wants the name to be no other network's.
func free(dir *chain.Dir, name string) error {
	l, err := dir.Find(name)
	var missing *chain.NotFoundError
	var none *chain.NoConfigsFoundError
	switch {
	case l != nil:
		return fmt.Errorf("it exists already: %s", l.File)
	case errors.As(err, &missing), errors.As(err, &none):
		return nil
	}
	return fmt.Errorf("a broken file has this name: %w", err)
}

// file chooses the file's name. Runtimes take the first network of a directory
// for their own, so a new one does not come before what is there.
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
	m.Warn(fmt.Errorf("%s comes before %s: runtimes that use the first network use this one now", base, names[0]))
	return filepath.Join(m.Dir, base), m.absent(base)
}

// candidates are names of files in the order of preference.
func candidates(name string) (list []string) {
	for n := 50; n <= 99; n++ {
		list = append(list, fmt.Sprintf("%d-%s.conflist", n, name))
	}
	return append(list, name+".conflist")
}

// absent wants no file of that name: one that holds another network is not ours.
func (m *Maker) absent(base string) error {
	_, err := os.Lstat(filepath.Join(m.Dir, base))
	switch {
	case err == nil:
		return fmt.Errorf("the file %s is there already", filepath.Join(m.Dir, base))
	case errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return err
}
