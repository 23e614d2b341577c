// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/durable"
)

// GrantFile is the name of the file that limits which addresses of a network this host gives out. It
// is in the directory of the network's reservations, and is changed under their lock. So a program
// that withdraws addresses from a host knows which of them are reserved, and that the host reserves
// no more of them (docs/adr/0076). Without the file there is no limit. The reference's host-local
// ignores it.
const GrantFile = "grant"

// ErrNotGranted means that the grant lacks addresses of a range.
var ErrNotGranted = errors.New("this host must not give out addresses of")

// Granted are the blocks of a network from which this host may give out addresses.
type Granted struct {
	Blocks []netip.Prefix
	Why    string // why the host has no other block, for the error of an ADD
}

const (
	grantTitle = "# The blocks from which this host may give out addresses (docs/hosts.md)."
	grantWhy   = "# why: "
	grantMode  = 0o644
)

func (g *Granted) encode() []byte {
	lines := []string{grantTitle}
	if g.Why != "" {
		lines = append(lines, grantWhy+strings.Join(strings.Fields(g.Why), " "))
	}
	for _, b := range g.Blocks {
		lines = append(lines, b.String())
	}
	return []byte(strings.Join(lines, "\n") + "\n")
}

// parseGrant reads a grant. It refuses text without the title, such as an empty file after a power
// loss: read as a grant, that text would set no limit.
func parseGrant(text string) (*Granted, error) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if lines[0] != grantTitle {
		return nil, errors.New("it does not begin as a grant does")
	}
	g := new(Granted)
	for _, line := range lines[1:] {
		if why, ok := strings.CutPrefix(line, grantWhy); ok {
			g.Why = why
			continue
		}
		block, err := netip.ParsePrefix(line)
		if err != nil {
			return nil, err
		}
		g.Blocks = append(g.Blocks, block.Masked())
	}
	return g, nil
}

// covers reports whether one block contains all addresses of a range.
func (g *Granted) covers(r *Range) bool {
	return slices.ContainsFunc(g.Blocks, func(b netip.Prefix) bool { return b.Contains(r.Start) && b.Contains(r.End) })
}

// equal reports whether two grants are the same. Either may be nil, which is no limit.
func (g *Granted) equal(o *Granted) bool {
	return g == o || g != nil && o != nil && string(g.encode()) == string(o.encode())
}

// readGrant returns the grant of the directory, or nil if there is none.
func (d *dir) readGrant() (*Granted, error) {
	f, err := d.read(GrantFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var g *Granted
	if err == nil {
		g, err = parseGrant(string(f.data))
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", filepath.Join(d.path, GrantFile), err)
	}
	return g, nil
}

// permit returns an error if the grant lacks addresses of a set.
func (t *Tx) permit(sets []RangeSet) error {
	if t.dir == nil {
		return nil
	}
	g, err := t.dir.readGrant()
	if err != nil || g == nil {
		return err
	}
	for _, set := range sets {
		for i := range set {
			if !g.covers(&set[i]) {
				return fmt.Errorf("%w %s: %s (%s)", ErrNotGranted, set[i].Subnet, g.reason(), filepath.Join(t.dir.path, GrantFile))
			}
		}
	}
	return nil
}

func (g *Granted) reason() string {
	if g.Why != "" {
		return g.Why
	}
	return fmt.Sprintf("it may give out those of %v", g.Blocks)
}

// Grant returns the network's grant, or nil if there is none.
func (s *FileStore) Grant() (*Granted, error) {
	d, err := openDir(s.DataDir, s.Network, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer d.close()
	return d.readGrant()
}

// ChangeGrant calls change with the present grant, and replaces it by the result. nil stands for no
// grant. A grant that cannot be read counts as a grant without blocks. Then it counts the reserved
// addresses of some blocks. It holds the lock of the reservations. So an ADD that began earlier is
// counted, and a later one sees the new grant.
func (s *FileStore) ChangeGrant(ctx context.Context, change func(*Granted) *Granted, blocks []netip.Prefix) (reserved int, err error) {
	d, err := openDir(s.DataDir, s.Network, true)
	if err != nil {
		return 0, err
	}
	defer d.close()
	fd, err := d.lock(ctx, false)
	if err != nil {
		return 0, err
	}
	defer closeFD(fd)
	if err := d.changeGrant(change); err != nil {
		return 0, err
	}
	return d.reserved(blocks)
}

func (d *dir) changeGrant(change func(*Granted) *Granted) error {
	now, damaged := d.readGrant()
	if damaged != nil {
		now = &Granted{Why: damaged.Error()} // as for an ADD: a damaged grant must not mean no limit
	}
	to := change(now)
	path := filepath.Join(d.path, GrantFile)
	switch {
	case damaged == nil && to.equal(now):
		return nil
	case to == nil:
		return durable.Remove(path)
	}
	return durable.WriteDurable(path, to.encode(), grantMode)
}

// Reserved counts the reserved addresses of some blocks. After an error the number is not known.
func (s *FileStore) Reserved(blocks []netip.Prefix) (int, error) {
	d, err := openDir(s.DataDir, s.Network, false)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer d.close()
	return d.reserved(blocks)
}

func (d *dir) reserved(blocks []netip.Prefix) (n int, err error) {
	names, err := d.names()
	for _, name := range names {
		a, ok := addressOf(name)
		if ok && slices.ContainsFunc(blocks, func(b netip.Prefix) bool { return b.Contains(a) }) {
			n++
		}
	}
	return n, err
}

// Grants returns the networks below a data directory that have a grant.
func Grants(dataDir string) (networks []string, err error) {
	entries, err := os.ReadDir(dataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if _, err := os.Lstat(filepath.Join(dataDir, e.Name(), GrantFile)); err == nil {
			networks = append(networks, e.Name())
		}
	}
	return networks, err
}
