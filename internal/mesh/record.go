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
	"strconv"
	"strings"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/owner"
	"github.com/patchbay-net/patchbay/paths"
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

// stands reports whether the mesh is still wanted.
func (n *note) stands() bool {
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
