// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/traces"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// SweepLost finds attachments of the network that have elements in the firewall, but no record
// and no entry in the GC's list. An ADD writes its record first, so such an attachment has lost
// its record. SweepLost calls remove with those elements that mine selects. It skips elements
// that a record names, because Sweep removes those. Seize keeps an attachment whose veth pair is in
// use, because the GC's caller may have lost the attachment too.
func (k *Kernel) SweepLost(r *plugin.Request, mine func(nft.Element) bool, remove func(*record.Record) error) error {
	living := k.living(r)
	all, err := k.Traces().Elements(traces.Scope{Network: r.Network})
	errs := []error{err}
	if err != nil {
		r.Spare(spec.AttachmentKey{}) // an element that was not listed may lead to any address
	}
	for o, elems := range all {
		elems = slices.DeleteFunc(elems, func(e nft.Element) bool { return !mine(e) })
		if len(elems) == 0 || living[o] {
			continue
		}
		names := k.Traces().Names(r.Network, o, elems)
		errs = append(errs, k.Seize(r, Suspect{Owner: o, Names: names}, func() (Outcome, error) { return k.removeLost(r, o, elems, remove) }))
	}
	return errors.Join(errs...)
}

// SpareLost keeps the addresses of attachments of the network that have lost their records and whose veth pairs are
// in use, whatever IPAM plugin has given them. Without a record and elements nothing else leads a GC to them.
func (k *Kernel) SpareLost(r *plugin.Request) {
	links, err := k.Traces().Links()
	if err != nil {
		Warn(r, err)
		r.Spare(spec.AttachmentKey{})
		return
	}
	lost := maps.Clone(links.Of)
	for _, o := range k.Records.Owners() {
		delete(lost, o)
	}
	living := k.living(r)
	if len(lost) == 0 {
		return
	}
	k.Traces().Candidates(r.Network, func(a spec.AttachmentKey) bool {
		o := owner.Of(r.Network, a.ContainerID, a.IfName)
		if lost[o] != nil && !living[o] && k.stays(r, Suspect{Owner: o}, nil) != "" {
			r.Spare(a)
			delete(lost, o)
		}
		return false
	})
}

// removeLost removes those elements of a seized owner that no record names.
func (k *Kernel) removeLost(r *plugin.Request, o owner.Key, elems []nft.Element, remove func(*record.Record) error) (Outcome, error) {
	current := k.Records.Current(r.Network, o)
	if slices.ContainsFunc(current, func(s record.CurrentRecord) bool { return s.Record == nil }) {
		return Kept, nil // that record may name any element
	}
	rec := &record.Record{Plugin: r.Plugin.Name, Network: r.Network, Owner: o, Elements: unnamed(elems, current)}
	if len(rec.Elements) == 0 {
		return Removed, nil // Sweep decides
	}
	err := remove(rec)
	if errors.Is(err, errLater) {
		err = nil
	}
	return outcome(err)
}

// unnamed returns the elements that no record names.
func unnamed(elems []nft.Element, records []record.CurrentRecord) []nft.Element {
	return slices.DeleteFunc(elems, func(e nft.Element) bool {
		return slices.ContainsFunc(records, func(s record.CurrentRecord) bool {
			return slices.ContainsFunc(s.Record.Elements, e.SameKey)
		})
	})
}

// Derive makes a new record in place of one that cannot be read. It collects everything that has
// the owner's key: facts that no readable record has, elements, and links. It adds the
// attachment's names if it can find them.
func (k *Kernel) Derive(t record.Torn) (*record.Record, error) {
	rec := &record.Record{Plugin: t.Plugin, Owner: t.Owner, Network: t.Network}
	var err error
	if rec.Shared, err = k.unclaimed(t); err != nil {
		return nil, err
	}
	elems, err := k.Traces().Elements(traces.Scope{Owner: t.Owner})
	if err != nil {
		return nil, err
	}
	rec.Elements = elems[t.Owner]
	if rec.Links, err = k.marked(t.Owner); err != nil {
		return nil, err
	}
	if unmarked := t.Owner.LinkName("veth", 0); !slices.Contains(rec.Links, unmarked) {
		rec.Links = append(rec.Links, unmarked) // an ADD may have given it this name before it wrote the mark
	}
	names := k.Traces().Names(t.Network, t.Owner, rec.Elements)
	rec.ContainerID, rec.IfName = names.ContainerID, names.IfName
	return rec, nil
}

// unclaimed returns the facts that the owner holds and that no record of another plugin lists
// for this owner.
func (k *Kernel) unclaimed(t record.Torn) (names []string, err error) {
	held, err := k.Records.FactsOf(t.Owner)
	if err != nil || len(held) == 0 {
		return nil, err
	}
	records, _, _ := k.Records.Scan(t.Network)
	claimed := make(map[string]bool)
	for _, r := range records {
		for _, name := range r.Shared {
			claimed[name] = claimed[name] || r.Owner == t.Owner
		}
	}
	return slices.DeleteFunc(held, func(name string) bool { return claimed[name] }), nil
}

// collect keeps `patchbay repair` out until the session ends, because repair would restore
// what is being removed. It also removes the claims that an earlier GC could not remove.
func (k *Kernel) collect(ctx context.Context, r *plugin.Request) {
	if k.collecting {
		return
	}
	k.collecting = true
	done, err := k.Records.Collecting(ctx)
	if err != nil {
		Warn(r, err)
		return
	}
	k.session.OnClose(done)
	if err := k.Records.SweepClaims(r.Network); err != nil {
		Warn(r, err)
	}
}
