// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"context"
	"errors"
	"slices"

	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/ipam"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/kernel"
	"github.com/patchbay-net/patchbay/spec"
)

// gc releases the reservations of attachments that are gone, in every directory that the
// configuration or a record names, and deletes their records.
func gc(ctx context.Context, r *plugin.Request) error {
	valid, ok := r.Head.Valid()
	if !ok {
		return nil
	}
	dir, err := configuredDir(r)
	if err != nil {
		kernel.Warn(r, err)
	}
	k := kernel.Of(r)
	dirs := []string{dir}
	records, _, err := k.Records.Scan(r.Network)
	if err != nil {
		kernel.Warn(r, err)
	}
	for _, rec := range records {
		if rec.Plugin == name && rec.DataDir != "" && !slices.Contains(dirs, rec.DataDir) {
			dirs = append(dirs, rec.DataDir)
		}
	}
	errs := []error{}
	for _, d := range dirs {
		errs = append(errs, collect(ctx, r, d, keeper(valid)))
	}
	if err := errors.Join(errs...); err != nil {
		return err // the records name what is left
	}
	return kernel.CollectRecords(ctx, r)
}

// keeper reports whether an owner is still valid. One without an interface name,
// from a file of an old version, is valid with its container.
func keeper(valid []spec.Attachment) func(ipam.Owner) bool {
	set := map[ipam.Owner]bool{}
	for _, a := range valid {
		set[ipam.Owner{ID: a.ContainerID, IfName: a.IfName}] = true
		set[ipam.Owner{ID: a.ContainerID}] = true
	}
	return func(o ipam.Owner) bool { return set[o] }
}

// collect looks first, and then for each owner again, with the attachment's claim: it locks
// the directory only for as long as one owner takes.
func collect(ctx context.Context, r *plugin.Request, dir string, keep func(ipam.Owner) bool) error {
	owners, err := stale(ctx, r, dir, keep)
	errs := []error{err}
	for o := range owners {
		errs = append(errs, kernel.Of(r).Seize(r, owner.Of(r.Network, o.ID, o.IfName), func() error {
			return releaseOf(ctx, r, dir, o, func(res ipam.Reservation) bool { return !res.Since.After(r.Listed()) })
		}))
	}
	return errors.Join(errs...)
}

// stale sweeps a directory and lists the owners that are not valid. A file that names none
// is an operator's, to block the address.
func stale(ctx context.Context, r *plugin.Request, dir string, keep func(ipam.Owner) bool) (map[ipam.Owner]bool, error) {
	tx, err := store(r, dir).Begin(ctx, ipam.Existing)
	if err != nil {
		return nil, err
	}
	defer tx.Close()
	owners := map[ipam.Owner]bool{}
	if err := tx.Sweep(); err != nil {
		return nil, err
	}
	all, err := tx.List(false)
	for _, res := range all {
		if res.Owner.ID != "" && !keep(res.Owner) {
			owners[res.Owner] = true
		}
	}
	return owners, err
}
