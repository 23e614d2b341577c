// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"context"
	"errors"
	"slices"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/ipam"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// gc releases the reservations of attachments that are gone, in every directory
// that the configuration or a record names, and forgets their records.
func gc(ctx context.Context, r *plugin.Request) error {
	valid, ok := r.Head.Valid()
	if !ok {
		return nil
	}
	keep := keeper(valid)
	dir, err := configuredDir(r)
	if err != nil {
		kernel.Warn(r, err)
	}
	k := kernel.Of(r)
	records, _, err := k.Records.Scan(r.Network)
	errs := []error{err}
	dirs := []string{dir}
	for _, rec := range records {
		if rec.Plugin == name && rec.DataDir != "" && !slices.Contains(dirs, rec.DataDir) {
			dirs = append(dirs, rec.DataDir)
		}
	}
	for _, d := range dirs {
		errs = append(errs, collect(ctx, r, d, spare(r, keep)))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	stale, _ := k.Stale(r, name)
	for _, rec := range stale {
		errs = append(errs, k.Records.Remove(rec.Network, rec.Owner, name))
	}
	return errors.Join(errs...)
}

// keeper says whether an owner is still valid. One without an interface name,
// from a file of an old version, is valid with its container.
func keeper(valid []spec.Attachment) func(ipam.Owner) bool {
	set := map[ipam.Owner]bool{}
	for _, a := range valid {
		set[ipam.Owner{ID: a.ContainerID, IfName: a.IfName}] = true
		set[ipam.Owner{ID: a.ContainerID}] = true
	}
	return func(o ipam.Owner) bool { return set[o] }
}

// spare keeps what an ADD or DEL is working on right now.
func spare(r *plugin.Request, keep func(ipam.Owner) bool) func(ipam.Owner) bool {
	records := kernel.Of(r).Records
	return func(o ipam.Owner) bool {
		return keep(o) || records.Busy(r.Network, owner.Of(r.Network, o.ID, o.IfName), name)
	}
}

func collect(ctx context.Context, r *plugin.Request, dir string, keep func(ipam.Owner) bool) error {
	tx, err := store(r, dir).Begin(ctx, ipam.Existing)
	if err != nil {
		return err
	}
	defer tx.Close()
	_, err = ipam.Collect(tx, keep)
	return err
}
