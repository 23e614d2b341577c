// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"errors"

	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Sweep is the GC of a plugin that keeps records: it calls remove for each attachment that
// is not on the request's list, with a record that is derived from the owner where the one
// on disk is torn. remove deletes the record. ok is false when the request has no list:
// then nothing may be removed.
//
// The list proves nothing about an attachment made after it: see Seize.
func (k *Kernel) Sweep(ctx context.Context, r *plugin.Request, pluginName string, remove func(*record.Record) error) (ok bool, err error) {
	keep, ok := r.Valid()
	if !ok {
		return false, nil
	}
	k.collect(ctx, r)
	records, torn, err := k.Records.Scan(r.Network)
	if err != nil {
		Warn(r, err)
	}
	var errs []error
	for _, rec := range records {
		if rec.Plugin == pluginName && !keep(rec.ContainerID, rec.IfName) {
			errs = append(errs, k.sweepOne(r, pluginName, rec.Owner, remove))
		}
	}
	living := k.living(r)
	for _, t := range torn {
		if t.Plugin != pluginName || living[t.Owner] {
			continue // CHECK reports it
		}
		Warn(r, t.Err)
		errs = append(errs, k.sweepOne(r, pluginName, t.Owner, remove))
	}
	return true, errors.Join(errs...)
}

// living returns the owners on a GC's list.
func (k *Kernel) living(r *plugin.Request) map[owner.Key]bool {
	valid, _ := r.Head.Valid()
	living := make(map[owner.Key]bool, len(valid))
	for _, a := range valid {
		living[owner.Of(r.Network, a.ContainerID, a.IfName)] = true
	}
	return living
}

func (k *Kernel) sweepOne(r *plugin.Request, pluginName string, o owner.Key, remove func(*record.Record) error) error {
	return k.Seize(r, o, pluginName, func() error {
		rec, err := k.Records.Read(r.Network, o, pluginName)
		if err != nil {
			rec, err = k.Derive(record.Torn{Network: r.Network, Owner: o, Plugin: pluginName, Err: err})
		}
		if err != nil {
			Warn(r, err)
			return nil
		}
		if rec == nil {
			return nil // a DEL has removed it
		}
		if rec.ContainerID == "" && k.keepsPair(r, o) {
			return nil // torn and without names: it cannot be on any list
		}
		return remove(rec)
	})
}

// Seize runs fn with an attachment that is not on a GC's list, unless it is newer than the
// list or another process works on it: then its absence does not mean that it is dead. The
// record of pluginName stays locked until it is removed.
func (k *Kernel) Seize(r *plugin.Request, o owner.Key, pluginName string, fn func() error) error {
	var others []string
	release, keepReason, err := k.Records.Seize(r.Network, o, func(now []record.Standing) string {
		for _, s := range now {
			if s.Since.After(r.Listed()) {
				return "it is newer than the list of valid attachments"
			}
			if s.Plugin != pluginName {
				others = append(others, s.Plugin)
			}
		}
		return ""
	})
	if err != nil || keepReason != "" {
		return err
	}
	defer release()
	for _, other := range others {
		k.Records.Unlock(r.Network, o, other) // for the GC of the other plugin
	}
	return fn()
}

// newer returns the attachments with a record that is newer than a GC's list, or in use:
// their absence from the list does not make their objects dead, recorded or not.
func (k *Kernel) newer(r *plugin.Request) (list []spec.Attachment) {
	records, _, _ := k.Records.Scan(r.Network) // a torn record names no attachment
	for _, rec := range records {
		since := k.Records.Since(rec)
		if since.After(r.Listed()) || k.Records.Busy(rec.Network, rec.Owner, rec.Plugin) {
			list = append(list, spec.Attachment{ContainerID: rec.ContainerID, IfName: rec.IfName})
		}
	}
	return list
}

// Stays returns the attachments whose objects a GC by names must keep: those on its list
// and newer ones.
func (k *Kernel) Stays(r *plugin.Request) []spec.Attachment {
	valid, _ := r.Head.Valid()
	return append(append([]spec.Attachment{}, valid...), k.newer(r)...)
}
