// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/internal/results"
)

// sweepAge is the age from which GC deletes a broken cache file. libcni does not write
// atomically, so a younger file may only be incomplete yet.
const sweepAge = time.Minute

// sweepAlone runs sweep while this runtime runs no ADD and no DEL on the network.
func (rt *Runtime) sweepAlone(ctx context.Context, k *Keep) error {
	unlock, err := rt.lockNetwork(ctx, k.List.Name)
	if err != nil {
		return err
	}
	defer unlock()
	return rt.sweep(k)
}

// sweep deletes the broken cache files of a network, except those of valid attachments. Nothing
// can read their content any more. Names may contain '-', so a file's name may be that of an attachment to
// another network too; such a file stays.
func (rt *Runtime) sweep(k *Keep) error {
	entries, err := os.ReadDir(rt.results())
	if err != nil || rt.guard() != nil {
		return nil //nolint:nilerr // Attachments has reported it
	}
	valid := map[string]bool{}
	for _, v := range k.Valid {
		valid[results.Name(k.List.Name, v.ContainerID, v.IfName)] = true
	}
	d, err := LoadDir(rt.confDir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), results.Prefix(k.List.Name)) || valid[e.Name()] || d.ofOther(e.Name(), k.List.Name) {
			continue
		}
		path := filepath.Join(rt.results(), e.Name())
		if _, err := readFile(path); errors.Is(err, ErrBrokenCache) && olderThan(e, sweepAge) {
			errs = append(errs, os.Remove(path))
		}
	}
	return errors.Join(errs...)
}

// ofOther reports whether a cache file may be that of an attachment to another network of the directory.
func (d *Dir) ofOther(file, network string) bool {
	named := func(name string) bool { return name != network && strings.HasPrefix(file, results.Prefix(name)) }
	return slices.ContainsFunc(d.Lists, func(l *List) bool { return named(l.Name) }) ||
		slices.ContainsFunc(d.Broken, func(b *FileError) bool { return named(nameOf(b.File)) })
}

func olderThan(e fs.DirEntry, age time.Duration) bool {
	fi, err := e.Info()
	return err == nil && time.Since(fi.ModTime()) > age
}
