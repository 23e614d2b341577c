// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/record"
)

// Stale is a mesh that exists but is no longer wanted, because its record or the path in
// Options.Wanted is gone.
type Stale struct {
	Name, Why string
	mark      mark
}

// Stale lists the stale meshes. If some cannot be read, it returns an error together with the
// others.
func (m *Mesh) Stale() ([]Stale, error) {
	marks, err := m.marks()
	errs := []error{err}
	var list []Stale
	for _, k := range marks {
		why, err := m.unwanted(k)
		if errs = append(errs, err); why != "" {
			list = append(list, Stale{Name: k.name, Why: why, mark: k})
		}
	}
	return list, errors.Join(errs...)
}

// unwanted returns the reason why a mesh may be removed, or "" if it must stay. A mesh whose
// record cannot be read must stay, because the record may come from a newer program.
func (m *Mesh) unwanted(k mark) (why string, err error) {
	rec, err := readRecord(m.opts.Paths, k.name)
	switch {
	case err != nil:
		return "", err
	case rec == nil || rec.mark() != k:
		return "it has no record", nil
	case !rec.stands():
		return rec.Wanted + " is gone, so its agent was removed", nil
	}
	return "", nil
}

// Remove removes a stale mesh, unless an agent uses it again.
func (m *Mesh) Remove(ctx context.Context, s Stale) error {
	unlock, err := lock(ctx, m.opts.Paths)
	if err != nil {
		return err
	}
	defer unlock()
	if why, err := m.unwanted(s.mark); err != nil || why == "" {
		return err
	}
	return m.clear(ctx, s.mark)
}

// marks returns every mesh that has a record, a device or a fact. Routes without any of these
// belong to the default mesh.
func (m *Mesh) marks() (list []mark, err error) {
	note := func(s, prefix string) {
		rest, ok := strings.CutPrefix(s, prefix)
		if k, valid := parseMark(rest); ok && valid && !slices.Contains(list, k) {
			list = append(list, k)
		}
	}
	links, err := m.conn.LinkList()
	errs := []error{err}
	for _, l := range links {
		note(l.Attrs().Alias, aliasPrefix)
	}
	store := record.New(m.opts.Paths.Run)
	defer store.Close()
	holders, _, err := store.Facts()
	errs = append(errs, err)
	for _, owners := range holders {
		for _, o := range owners {
			note(string(o), holderPrefix)
		}
	}
	recorded, err := m.recorded()
	errs = append(errs, err)
	for _, k := range recorded {
		note(k.String(), "")
	}
	if !slices.ContainsFunc(list, func(k mark) bool { return k.protocol == DefaultProtocol }) {
		routes, err := m.ourRoutes(DefaultProtocol)
		if errs = append(errs, err); len(routes) > 0 {
			list = append(list, mark{DefaultProtocol, DefaultName})
		}
	}
	return list, errors.Join(errs...)
}

// recorded returns the marks of the records that can be read.
func (m *Mesh) recorded() (list []mark, err error) {
	entries, err := os.ReadDir(filepath.Join(m.opts.Paths.Run, recordDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list meshes: %w", err)
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".json")
		if rec, err := readRecord(m.opts.Paths, name); ok && err == nil && rec != nil {
			list = append(list, rec.mark())
		}
	}
	return list, nil
}
