// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/spec"
)

// recordDir is a directory in the run directory. recordDir has a file for each wanted mesh.
const recordDir = "mesh"

// recordSchema is the version of the record's format. This program does not read a newer one.
const recordSchema = 1

// note is the record of a mesh. note is written before the first change and removed after the
// last one.
type note struct {
	Schema   int    `json:"schema"`
	Name     string `json:"name"`
	Protocol uint8  `json:"protocol"`
	Wanted   string `json:"wanted,omitempty"` // see Options
}

func (n *note) mark() mark { return mark{n.Protocol, n.Name} }

// isWanted reports whether the mesh is still wanted.
func (n *note) isWanted() bool {
	if n.Wanted == "" {
		return true
	}
	_, err := os.Lstat(n.Wanted)
	return !errors.Is(err, fs.ErrNotExist)
}

// mark identifies the devices and facts of a mesh. mark is enough to find all objects of the
// mesh.
type mark struct {
	protocol uint8
	name     string
}

const (
	aliasPrefix  = "patchbay-mesh:"
	holderPrefix = "mesh." // the owner key of an attachment has no dot
)

func (k mark) String() string { return fmt.Sprintf("%d.%s", k.protocol, k.name) }

func (k mark) alias() string { return aliasPrefix + k.String() }

func (k mark) holder() owner.Key { return owner.Key(holderPrefix + k.String()) }

// IsHolder reports whether the holder of a shared fact looks like a mesh.
func IsHolder(o owner.Key) bool {
	rest, ok := strings.CutPrefix(string(o), holderPrefix)
	_, valid := parseMark(rest)
	return ok && valid
}

// parseMark parses the text after either prefix.
func parseMark(s string) (k mark, ok bool) {
	number, name, ok := strings.Cut(s, ".")
	n, err := strconv.ParseUint(number, 10, 8)
	k = mark{uint8(n), name}
	return k, ok && err == nil && k.String() == s && spec.ValidateNetworkName(name) == nil
}

func recordPath(p paths.Paths, name string) string {
	return filepath.Join(p.Run, recordDir, name+".json")
}

// note writes the record if it differs. If the mesh has another mark than its record, note
// first clears the old mesh, because nothing else would find the objects with the old mark.
func (m *Mesh) note(ctx context.Context, s State) error {
	want := note{recordSchema, s.Name, s.Protocol, m.opts.Wanted}
	old, err := readRecord(m.opts.Paths, s.Name)
	switch {
	case err != nil:
		m.opts.Warn(err) // a damaged record is written again
	case old != nil && old.mark() != want.mark():
		if err := m.clear(ctx, old.mark()); err != nil {
			return err
		}
	case old != nil && *old == want:
		return nil
	}
	data, err := json.Marshal(want)
	if err != nil {
		return fmt.Errorf("write record of mesh %s: %w", s.Name, err)
	}
	if err := durable.Write(recordPath(m.opts.Paths, s.Name), data); err != nil {
		return fmt.Errorf("write record of mesh %s: %w", s.Name, err)
	}
	return nil
}

// readRecord returns the record of a mesh, or nil if there is none.
func readRecord(p paths.Paths, name string) (*note, error) {
	data, err := durable.Read(recordPath(p, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	n := new(note)
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(data))
		err = d.Decode(n)
	}
	if err == nil && (n.Schema > recordSchema || n.Name != name || n.Protocol == 0) {
		err = fmt.Errorf("schema %d of mesh %q; this program reads up to %d", n.Schema, n.Name, recordSchema)
	}
	if err != nil {
		return nil, fmt.Errorf("read record of mesh %s: %w", name, err)
	}
	return n, nil
}

func dropRecord(p paths.Paths, name string) error {
	if err := durable.Remove(recordPath(p, name)); err != nil {
		return fmt.Errorf("remove record of mesh %s: %w", name, err)
	}
	return nil
}

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
	case !rec.isWanted():
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
		if errs = append(errs, err); slices.ContainsFunc(routes, toPeer) {
			list = append(list, mark{DefaultProtocol, DefaultName})
		}
	}
	return list, errors.Join(errs...)
}

// toPeer reports whether a route leads to a peer. Other routes refuse packets, and the first ADD after a
// boot makes them before the agent runs. They protect that container.
func toPeer(r netlink.Route) bool { return r.Type != unix.RTN_UNREACHABLE }

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
