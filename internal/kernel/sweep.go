// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"errors"
	"slices"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nft/iptnft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/traces"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// ErrUnfinished means that a removal has done all that is possible now. It does not fail a DEL or
// GC. The record stays, so that the next GC tries again.
var ErrUnfinished = errors.New("not finished")

// errLater means that the end of the session deletes the record.
var errLater = errors.New("the end of the session deletes the record")

// Detach performs the DEL of a plugin that keeps records. Detach calls remove with the locked
// record and then deletes the record. If there is no record, or only a broken one, Detach gets
// one from lost, which may be nil.
func (k *Kernel) Detach(r *plugin.Request, lost func() *record.Record, remove func(*record.Record) error) error {
	k.detaching = append(k.detaching, r)
	defer func() { k.detaching = k.detaching[:len(k.detaching)-1] }()
	rec, err := k.Records.ReadLocked(r.Network, r.Owner, r.Plugin.Name)
	if err != nil {
		Warn(r, err)
	}
	if rec != nil {
		k.sweepDead(r, rec)
	} else if lost != nil {
		rec = lost()
		name(r, rec)
	}
	_, err = k.drop(r, r.Owner, remove(rec))
	return err
}

// drop deletes the record if the removal succeeded.
func (k *Kernel) drop(r *plugin.Request, o owner.Key, err error) (Outcome, error) {
	switch {
	case err == nil:
		return outcome(k.Records.Remove(r.Network, o, r.Plugin.Name))
	case errors.Is(err, errLater):
		return Removed, nil
	case errors.Is(err, ErrUnfinished):
		Warn(r, err)
		return Kept, nil
	}
	return Kept, err
}

// Finish ends a removal. It sends what is queued for rec, but does not wait for the result, so
// that the caller can delete a link meanwhile. The end of the session waits for the result and
// deletes the record. If the DEL of the plugin that made the link follows, nothing waits here: that
// DEL releases the address, and waits before it does (endpoint.removeAndRelease).
func (k *Kernel) Finish(ctx context.Context, r *plugin.Request, rec *record.Record) error {
	if err := k.NFT.Start(ctx); err != nil {
		return err
	}
	if k.linkFollows(r) && k.NFT.Leave() {
		return nil
	}
	k.finishing = append(k.finishing, rec)
	r.Session.OnFlush(func(ctx context.Context) error {
		if err := k.NFT.Commit(ctx); err != nil {
			return err
		}
		return k.Records.Remove(rec.Network, rec.Owner, rec.Plugin)
	})
	return errLater
}

// HasRecord reports whether a plugin has a record of the attachment whose removal has not begun in this session.
func (k *Kernel) HasRecord(network string, o owner.Key, pluginName string) bool {
	return k.Records.Exists(network, o, pluginName) && !slices.ContainsFunc(k.finishing, func(rec *record.Record) bool {
		return rec.Network == network && rec.Owner == o && rec.Plugin == pluginName
	}) && !slices.ContainsFunc(k.detaching, func(r *plugin.Request) bool {
		return r.Network == network && r.Owner == o && r.Plugin.Name == pluginName
	})
}

// Finishing reports whether removals that Finish has begun may not be visible yet.
func (k *Kernel) Finishing() bool { return len(k.finishing) > 0 }

// linkFollows reports whether this is a DEL and the plugin that made the link still has a record.
func (k *Kernel) linkFollows(r *plugin.Request) bool {
	return r.Verb == spec.Del && slices.ContainsFunc(r.Session.Plugins, func(p *plugin.Plugin) bool {
		return p.Kind == plugin.Interface && k.Records.Exists(r.Network, r.Owner, p.Name)
	})
}

// DetachInside performs the DEL of a chained plugin that works inside the container. If the
// namespace still exists, DetachInside calls remove with the record, or with nil if there is
// none. If the record or the namespace cannot be read, DetachInside only warns: the runtime must
// still be able to delete the interface, and the rest ends with the interface.
func DetachInside(r *plugin.Request, remove func(*nl.Conn, *record.Record) error) error {
	k := Of(r)
	return k.Detach(r, nil, func(rec *record.Record) error {
		env, err := k.DelEnv(r)
		if err != nil {
			Warn(r, err)
			return nil
		}
		if env.Sandbox == nil {
			return nil
		}
		return remove(env.Sandbox, rec)
	})
}

// CollectRecords performs the GC of a plugin whose objects end with the namespace.
func CollectRecords(ctx context.Context, r *plugin.Request) error {
	return Of(r).Sweep(ctx, r, func(*record.Record) error { return nil })
}

// Sweep performs the GC of a plugin that keeps records. For each attachment that is not valid it
// calls remove with the record, and then deletes the record. If the record cannot be read, Sweep
// derives one from the owner. If the request has no list of valid attachments, Sweep removes
// nothing.
//
// Seize keeps an attachment that was made after the list, or that another runtime made and whose
// namespace may exist.
func (k *Kernel) Sweep(ctx context.Context, r *plugin.Request, remove func(*record.Record) error) error {
	keep, ok := r.Valid()
	if !ok {
		return nil
	}
	k.collect(ctx, r)
	records, torn, err := k.Records.Scan(r.Network)
	if err != nil {
		Warn(r, err)
		r.Spare(spec.AttachmentKey{}) // any attachment may have a record that Scan did not see
	}
	var errs []error
	var last nft.Tick
	take := func(rec *record.Record) error {
		err := remove(rec)
		last = nft.Ticks()
		return err
	}
	for _, rec := range records {
		if rec.Plugin != r.Plugin.Name || keep(rec.ContainerID, rec.IfName) || slices.Contains(r.Spared(), keyOf(rec)) {
			continue
		}
		errs = append(errs, k.sweepOne(r, rec.Owner, keyOf(rec), take))
	}
	living := k.living(r)
	for _, t := range torn {
		if t.Plugin != r.Plugin.Name || living[t.Owner] {
			continue // CHECK reports the record
		}
		Warn(r, t.Err)
		errs = append(errs, k.sweepOne(r, t.Owner, k.tornNames(r, t), take))
	}
	nft.AwaitTick(last) // a DEL may just have left elements to this plugin (Finish), and the addresses go next
	return errors.Join(errs...)
}

// tornNames searches for the names of an attachment whose record cannot be read. No list can have it without names.
func (k *Kernel) tornNames(r *plugin.Request, t record.Torn) spec.AttachmentKey {
	elems, err := k.Traces().Elements(traces.Scope{Owner: t.Owner})
	if err != nil {
		Warn(r, err)
	}
	return k.Traces().Names(r.Network, t.Owner, elems[t.Owner])
}

// living returns the owners of a GC's valid attachments.
func (k *Kernel) living(r *plugin.Request) map[owner.Key]bool {
	valid, _ := r.Head.Valid()
	living := make(map[owner.Key]bool, len(valid))
	for _, a := range valid {
		living[owner.Of(r.Network, a.ContainerID, a.IfName)] = true
	}
	return living
}

// sweepOne removes one attachment by the plugin's record, or by what leads to the owner if the record
// cannot be read. names are what is known of its names.
func (k *Kernel) sweepOne(r *plugin.Request, o owner.Key, names spec.AttachmentKey, remove func(*record.Record) error) error {
	return k.Seize(r, Suspect{Owner: o, Names: names}, func() (Outcome, error) {
		rec, err := k.Records.Read(r.Network, o, r.Plugin.Name)
		if err != nil {
			rec, err = k.Derive(record.Torn{Network: r.Network, Owner: o, Plugin: r.Plugin.Name, Err: err})
		}
		if err != nil {
			Warn(r, err)
			return Kept, nil
		}
		if rec == nil {
			return Removed, nil // a DEL has removed the record
		}
		return k.drop(r, o, remove(rec))
	})
}

// newer returns the attachments whose record is newer than a GC's list, or in use, and those that this
// GC keeps. They may be alive although they are not on the list, so GC must keep all their objects.
func (k *Kernel) newer(r *plugin.Request) (list []spec.AttachmentKey) {
	list = append(list, r.Spared()...)
	records, _, _ := k.Records.Scan(r.Network) // an unreadable record names no attachment
	for _, rec := range records {
		since := k.Records.Since(rec.Network, rec.Owner, rec.Plugin)
		if since.After(r.Listed()) || k.Records.Busy(rec.Network, rec.Owner, rec.Plugin) {
			list = append(list, keyOf(rec))
		}
	}
	return append(list, k.livingUnrecorded(r)...)
}

// livingUnrecorded returns the attachments that address files name and that may live.
func (k *Kernel) livingUnrecorded(r *plugin.Request) (list []spec.AttachmentKey) {
	held, err := reserved(context.Background(), r)
	if err != nil {
		Warn(r, err)
	}
	for _, h := range held {
		if h.Holder.Validate() == nil && !k.unlisted(r, h) {
			list = append(list, spec.AttachmentKey{ContainerID: h.Holder.ID, IfName: h.Holder.IfName})
		}
	}
	return list
}

// SweepReference queues the removal of what the reference plugins left in the firewall. It keeps
// the rules of attachments that are on the GC's list or were made after the list.
func (k *Kernel) SweepReference(r *plugin.Request) {
	valid, _ := r.Head.Valid()
	var stay []iptnft.Names
	kept := k.newer(r)
	if slices.Contains(kept, spec.AttachmentKey{}) {
		return // something stays whose names are not known
	}
	for _, a := range slices.Concat(valid, kept) {
		stay = append(stay, iptnft.Names{ContainerID: a.ContainerID, IfName: a.IfName})
	}
	k.NFT.Queue(iptnft.Sweep(r.Network, stay))
}
