// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/record"
)

// Remover removes the objects of a network that belong to no attachment.
type Remover struct {
	Dir     string // of the files of networks
	Paths   paths.Paths
	Host    *nl.Conn
	NFT     *nft.Conn
	Records *record.Store
	Sysctl  []string // files that set sysctls at boot
}

// Removal lists what was removed, and what stays with the reason.
type Removal struct {
	Network string   `json:"network"`
	Removed []string `json:"removed"`
	Left    []string `json:"left"`
}

func (r *Removal) removed(format string, args ...any) {
	r.Removed = append(r.Removed, fmt.Sprintf(format, args...))
}

func (r *Removal) left(format string, args ...any) {
	r.Left = append(r.Left, fmt.Sprintf(format, args...))
}

// Lock keeps other commands from changing the networks of the directory.
func (m *Remover) Lock(ctx context.Context) (unlock func(), err error) {
	unlock, err = durable.LockDir(ctx, m.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return func() {}, nil
	}
	return unlock, err
}

// Remove removes a network without attachments: its elements, its directory of addresses,
// its bridge, then its file, and at last forwarding. After a kill, a second call finishes,
// since the file goes after all else. Objects that may be another network's stay.
func (m *Remover) Remove(ctx context.Context, l *chain.List) (*Removal, error) {
	r := &Removal{Network: l.Name, Removed: []string{}, Left: []string{}}
	i := Describe(l)
	var errs []error
	for _, step := range []func() error{
		func() error { return m.elements(ctx, r) },
		func() error { return m.addresses(r, i) },
		func() error { return m.bridge(r, l, i) },
	} {
		errs = append(errs, step())
	}
	if err := errors.Join(errs...); err != nil {
		return r, err // keep the file for another try
	}
	if l.File != "" {
		if err := durable.Remove(l.File); err != nil {
			return r, fmt.Errorf("remove the file: %w", err)
		}
		r.removed("file %s", l.File)
	}
	return r, m.forwarding(r)
}

// elements removes the firewall elements with the network's name, except those of a fact
// that another network's attachment holds.
func (m *Remover) elements(ctx context.Context, r *Removal) error {
	holders, facts, err := m.Records.Facts()
	if err != nil {
		return fmt.Errorf("read firewall facts: %w", err)
	}
	held := map[string]bool{}
	for _, f := range facts {
		for _, e := range f.Elements {
			held[e.String()] = held[e.String()] || len(holders[f.Name]) > 0
		}
	}
	all, err := m.NFT.OfNetworks()
	if err != nil {
		return fmt.Errorf("list the elements of networks: %w", err)
	}
	n := 0
	for _, e := range all {
		if e.Comment == r.Network && !held[e.String()] {
			m.NFT.Remove(e)
			n++
		}
	}
	if n == 0 {
		return nil
	}
	r.removed("%d elements of the firewall", n)
	return m.NFT.Commit(ctx)
}

// addresses removes host-local's directory, if no address is reserved.
func (m *Remover) addresses(r *Removal, i Info) error {
	base := i.DataDir
	if base == "" {
		base = filepath.Join(m.Paths.CNI, "networks")
	}
	dir := filepath.Join(base, r.Network)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for addresses: %w", err)
	}
	for _, e := range entries {
		if e.Name() != "lock" && !strings.HasPrefix(e.Name(), "last_reserved_ip.") {
			r.left("%s: the address %s is reserved in it, and by no attachment that is known here", dir, e.Name())
			return nil
		}
	}
	for _, e := range entries {
		if err := durable.Remove(filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("remove %s: %w", dir, err)
		}
	}
	if err := os.Remove(dir); err != nil { // rmdir: an address reserved just now stays
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	r.removed("directory %s", dir)
	return nil
}
