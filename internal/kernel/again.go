// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"slices"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
)

// If a namespace has died without a DEL, a runtime may repeat the ADD. Then the transaction of
// the new ADD also removes those firewall elements of the earlier ADD that the new one does not
// have. Otherwise old ports would lead to the next container that gets the address. Until the
// transaction is committed, the record names the elements of both ADDs.

// repeatedAdd holds what a repeated ADD removes.
type repeatedAdd struct {
	rec  *record.Record
	gone []nft.Element
	r    *plugin.Request
	over bool // the removal is done, or the ADD failed
}

// write adds to rec what the earlier record names, and writes rec. If another ADD of the same
// attachment writes a record in between, write reads that record and tries again.
func (k *Kernel) write(r *plugin.Request, rec *record.Record) (before *record.Record, err error) {
	rec.Noted = true
	mine := *rec
	const tries = 10
	for try := 1; ; try++ {
		if before, err = k.Records.ReadLocked(rec.Network, rec.Owner, rec.Plugin); err != nil {
			Warn(r, err) // the new record replaces the broken one
		}
		*rec = mine
		a := k.follow(rec, before)
		err = k.Records.WriteOver(rec)
		if err == nil {
			k.removeLater(r, a)
		}
		if !errors.Is(err, record.ErrChanged) || try == tries {
			return before, err
		}
	}
}

// follow copies into rec what the earlier record names. If the namespace of the earlier ADD is
// gone, follow returns the elements that rec does not have; the caller removes them. If the
// namespace still exists, the elements stay until DEL, because another member of the same list
// may have made them.
func (k *Kernel) follow(rec, before *record.Record) *repeatedAdd {
	a := &repeatedAdd{rec: rec}
	if before == nil {
		return a
	}
	stale := without(before.Elements, rec.Elements)
	if k.Over(before) {
		a.gone = stale
	}
	for _, other := range k.repeats {
		if other.before(rec) {
			a.gone = append(a.gone, without(other.gone, rec.Elements)...)
		}
	}
	rec.Elements = slices.Concat(rec.Elements, stale)
	inherit(rec, before)
	return a
}

// before reports whether rec is a second record of the same ADD.
func (a *repeatedAdd) before(rec *record.Record) bool {
	return !a.over && a.rec.Owner == rec.Owner && a.rec.Plugin == rec.Plugin && a.rec.Network == rec.Network
}

// removeLater queues the removal of the earlier ADD's elements.
func (k *Kernel) removeLater(r *plugin.Request, a *repeatedAdd) {
	for _, other := range k.repeats {
		other.over = other.over || other.before(a.rec)
	}
	if len(a.gone) == 0 {
		return
	}
	k.withdraw(a.rec, a.gone)
	a.r = r
	k.repeats = append(k.repeats, a)
}

// inherit copies into rec what only a DEL may remove. The new ADD cannot remove it, because each
// plugin releases its facts differently.
func inherit(rec, before *record.Record) {
	rec.Shared = slices.Concat(rec.Shared, except(before.Shared, rec.Shared))
	rec.Links = slices.Concat(rec.Links, except(before.Links, rec.Links))
	rec.Noted = rec.Noted && (before.Noted || len(before.Elements) == 0)
	rec.Displaced = slices.Concat(rec.Displaced, except(before.Displaced, rec.Displaced))
	if len(rec.Accepts) == 0 {
		rec.AdminChain, rec.Open = before.AdminChain, before.Open
	}
	rec.Accepts = slices.Concat(rec.Accepts, except(before.Accepts, rec.Accepts)) // the removal finds them by owner
	inheritZones(rec, before)
	inheritPoliced(rec, before)
}

// inheritPoliced copies addresses that an earlier ADD may have closed, or from which it let the container send.
func inheritPoliced(rec, before *record.Record) {
	rec.Policed, rec.Sends = withFormer(rec.Policed, before.Policed), withFormer(rec.Sends, before.Sends)
}

func withFormer(now, before *record.Policed) *record.Policed {
	if now == nil || before == nil {
		return now
	}
	out := *now
	out.Former = except(slices.Concat(before.Addrs, before.Former), out.Addrs)
	return &out
}

// inheritZones copies the sources of firewalld zones, each with its zone.
func inheritZones(rec, before *record.Record) {
	if len(rec.Sources) == 0 {
		rec.Zone = before.Zone
	}
	if rec.Zone == before.Zone {
		rec.Sources = slices.Concat(rec.Sources, except(before.Sources, rec.Sources))
	} else if others := except(before.Sources, rec.Sources); len(others) > 0 {
		rec.OtherZones = append(slices.Clip(rec.OtherZones), record.ZoneSources{Zone: before.Zone, Sources: others})
	}
	for _, z := range before.OtherZones {
		if others := except(z.Sources, rec.Sources); len(others) > 0 {
			rec.OtherZones = append(slices.Clip(rec.OtherZones), record.ZoneSources{Zone: z.Zone, Sources: others})
		}
	}
}

// settle runs after the transaction and writes the records without the removed elements. If settle
// fails, a record names too many elements, which does no harm.
func (k *Kernel) settle() {
	for _, a := range k.repeats {
		if a.over {
			continue
		}
		a.over = true
		a.rec.Elements = without(a.rec.Elements, a.gone)
		if err := k.Records.Rewrite(a.rec); err != nil {
			Warn(a.r, err)
		}
	}
}

// without returns the elements whose keys are not among others.
func without(elems, others []nft.Element) []nft.Element {
	taken := placesOf(others)
	return slices.DeleteFunc(slices.Clone(elems), func(e nft.Element) bool { return taken[placeOf(e)] })
}

// place is the set and the key of an element. A record may name a hundred thousand elements, so they are looked up
// by their places.
type place struct{ set, key, end string }

func placeOf(e nft.Element) place { return place{e.Set, string(e.Key), string(e.KeyEnd)} }

func placesOf(elems []nft.Element) map[place]bool {
	all := make(map[place]bool, len(elems))
	for _, e := range elems {
		all[placeOf(e)] = true
	}
	return all
}

// except returns the values of list that are not in others.
func except[T comparable](list, others []T) []T {
	return slices.DeleteFunc(slices.Clone(list), func(x T) bool { return slices.Contains(others, x) })
}
