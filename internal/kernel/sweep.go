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

// Sweep is the GC of a plugin that keeps records: it calls remove for each
// attachment that is left out of the request's list, with a record that is
// derived from the owner where the one on disk is torn. remove forgets the record.
// ok is false when the request has no list: then nothing may go.
//
// The list was made before, so it proves nothing of what came since: Seize.
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
			continue // CHECK tells of it
		}
		Warn(r, t.Err)
		errs = append(errs, k.sweepOne(r, pluginName, t.Owner, remove))
	}
	return true, errors.Join(errs...)
}

// living are the owners on a GC's list.
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
			return nil // a DEL was faster
		}
		if rec.ContainerID == "" && k.keepsPair(r, o) {
			return nil // torn, and nothing tells whose it is: it can be on nobody's list
		}
		return remove(rec)
	})
}

// Seize runs fn with an attachment that a GC's list leaves out, unless it came
// after the list was begun or something else works on it: then it is not dead for
// being left out. The record of pluginName stays locked until it is removed.
func (k *Kernel) Seize(r *plugin.Request, o owner.Key, pluginName string, fn func() error) error {
	var others []string
	release, stays, err := k.Records.Seize(r.Network, o, func(now []record.Standing) string {
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
	if err != nil || stays != "" {
		return err
	}
	defer release()
	for _, other := range others {
		k.Records.Unlock(r.Network, o, other) // a GC of its own
	}
	return fn()
}

// Newer reports whether an attachment without a place on a GC's list has a record
// that is newer than the list, or in use: its objects without a record are not
// dead for being left out.
func (k *Kernel) newer(r *plugin.Request) (list []spec.Attachment) {
	records, _, _ := k.Records.Scan(r.Network) // what is torn names no attachment
	for _, rec := range records {
		since := k.Records.Since(rec)
		if since.After(r.Listed()) || k.Records.Busy(rec.Network, rec.Owner, rec.Plugin) {
			list = append(list, spec.Attachment{ContainerID: rec.ContainerID, IfName: rec.IfName})
		}
	}
	return list
}

// Stays are the attachments whose objects a GC must leave where it goes by names
// alone: those on its list and those that are newer.
func (k *Kernel) Stays(r *plugin.Request) []spec.Attachment {
	valid, _ := r.Head.Valid()
	return append(append([]spec.Attachment{}, valid...), k.newer(r)...)
}
