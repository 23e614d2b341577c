// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
)

// del opens the addresses of an attachment before another one can get them. Without a record, it finds
// them by the owner.
func del(ctx context.Context, r *plugin.Request) error {
	k := kernel.Of(r)
	lost := func() *record.Record { return withoutRecord(r, k) }
	return k.Detach(r, lost, func(rec *record.Record) error { return remove(ctx, r, k, rec) })
}

// gc opens what belongs to attachments that are no longer valid, with and without a record.
func gc(ctx context.Context, r *plugin.Request) error {
	k := kernel.Of(r)
	open := func(rec *record.Record) error { return remove(ctx, r, k, rec) }
	err := k.Sweep(ctx, r, open)
	if _, listed := r.Valid(); !listed {
		return err
	}
	return errors.Join(err, k.SweepLost(r, nft.Element.OfPolicy, open))
}

// remove opens the addresses of one record.
func remove(ctx context.Context, r *plugin.Request, k *kernel.Kernel, rec *record.Record) error {
	closed := enforce.Closure{Comment: nft.Comment(string(rec.Owner), rec.Network, rec.ContainerID, rec.IfName)}
	if p := cmp.Or(rec.Policed, rec.Sends); p != nil {
		closed.Link, closed.Port, closed.Addrs = p.Link, p.Port, slices.Concat(p.Addrs, p.Former)
		if err := noteFormer(r.Session.Paths, closed.Addrs); err != nil {
			kernel.Warn(r, err) // connections of this pod may go on, if another one gets its address
		}
	}
	enforce.Reopen(k.NFT, closed)
	k.NFT.Remove(slices.DeleteFunc(slices.Clone(rec.Elements), func(e nft.Element) bool { return !e.OfPolicy() })...)
	return k.Finish(ctx, r, rec)
}

// withoutRecord makes a record of what the owner has closed. A container to which no policy applies has
// no record either, so in most cases there is none.
func withoutRecord(r *plugin.Request, k *kernel.Kernel) *record.Record {
	rec := &record.Record{}
	var err error
	if rec.Elements, err = enforce.ClosedBy(k.NFT, string(r.Owner)); err != nil {
		kernel.Warn(r, err)
	}
	return rec
}
