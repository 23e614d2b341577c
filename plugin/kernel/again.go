// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/owner"
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
	over bool // the removal is done, or the ADD failed
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
	if state, _ := k.Life(before); state == life.Dead {
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
	k.repeats = append(k.repeats, a)
	k.AfterCommit(r, func() { k.settle(r, a) })
	r.Session.OnDiscard(func() { a.over = true })
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

// inheritPoliced copies addresses that an earlier ADD may have closed.
func inheritPoliced(rec, before *record.Record) {
	if rec.Policed == nil || before.Policed == nil {
		return
	}
	now := *rec.Policed
	now.Former = except(slices.Concat(before.Policed.Addrs, before.Policed.Former), now.Addrs)
	rec.Policed = &now
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

// settle runs after the transaction and writes the record without the removed elements. If settle
// fails, the record names too many elements, which does no harm.
func (k *Kernel) settle(r *plugin.Request, a *repeatedAdd) {
	if a.over {
		return
	}
	a.over = true
	a.rec.Elements = without(a.rec.Elements, a.gone)
	if err := k.Records.Rewrite(a.rec); err != nil {
		Warn(r, err)
	}
}

// without returns the elements whose keys are not among others.
func without(elems, others []nft.Element) []nft.Element {
	type at struct{ set, key, end string }
	taken := make(map[at]bool, len(others))
	for _, e := range others {
		taken[at{e.Set, string(e.Key), string(e.KeyEnd)}] = true
	}
	return slices.DeleteFunc(slices.Clone(elems), func(e nft.Element) bool {
		return taken[at{e.Set, string(e.Key), string(e.KeyEnd)}]
	})
}

// except returns the values of list that are not in others.
func except[T comparable](list, others []T) []T {
	return slices.DeleteFunc(slices.Clone(list), func(x T) bool { return slices.Contains(others, x) })
}

// Two attachments may need elements with the same key: networks with equal subnets assign one
// address twice, or a container publishes a port for two networks. The attachment that came last
// has the element, and its record names the earlier owners. When a DEL of that attachment removes
// the element, the same transaction gives the element to the last earlier owner that is still
// alive.

// Displace adds the current owner of an element to rec before rec's owner takes the element. The
// session keeps the current owner's records locked, so that no DEL of that owner runs at the same
// time.
func (k *Kernel) Displace(rec *record.Record, from owner.Key) error {
	before := k.Records.TakeAll(from)
	if len(before) == 0 {
		return nil // the owner has no record, so nothing could be restored
	}
	var list []owner.Key
	noted := rec.Noted
	for _, b := range before {
		list = append(list, b.Displaced...)
		noted = noted && (b.Noted || len(b.Elements) == 0)
	}
	list = slices.DeleteFunc(append(list, from), func(o owner.Key) bool { return o == rec.Owner })
	now := slices.Concat(except(rec.Displaced, list), unique(list))
	if slices.Equal(now, rec.Displaced) && noted == rec.Noted {
		return nil
	}
	rec.Displaced, rec.Noted = now, noted
	return k.Records.Write(rec)
}

// unique removes duplicates and keeps the last of equal values.
func unique(list []owner.Key) (out []owner.Key) {
	for i, o := range list {
		if !slices.Contains(list[i+1:], o) {
			out = append(out, o)
		}
	}
	return out
}

// displaced is called when another attachment has an element that this session needs.
func (k *Kernel) displaced(r *plugin.Request, taken *nft.TakenError) error {
	from, _ := nft.OwnerOf(taken.Have.Comment)
	for _, rec := range slices.Backward(k.adding) {
		if !slices.ContainsFunc(rec.Elements, taken.Want.SameKey) {
			continue
		}
		had := len(rec.Displaced)
		err := k.Displace(rec, owner.Key(from))
		if len(rec.Displaced) > had {
			_, names, _ := strings.Cut(taken.Have.Comment, " ")
			taken.Have.Comment = ""
			Warn(r, fmt.Errorf("%s has the address too: %s; give each network a subnet of its own", names, taken.Have))
		}
		return err
	}
	return nil
}

// Withdraw queues the removal of a record's firewall elements and restores the elements of
// displaced owners.
func (k *Kernel) Withdraw(rec *record.Record) { k.withdraw(rec, rec.Elements) }

func (k *Kernel) withdraw(rec *record.Record, elems []nft.Element) {
	if len(rec.Displaced) == 0 && rec.Noted {
		k.NFT.Remove(elems...)
		return
	}
	k.NFT.Withdraw(func(gone nft.Element) (nft.Element, bool) { return k.heir(rec, gone) }, elems...)
}

// heir returns the element of an earlier owner that replaces a removed element of rec.
func (k *Kernel) heir(rec *record.Record, gone nft.Element) (nft.Element, bool) {
	candidates := rec.Displaced
	if !rec.Noted {
		candidates = k.alsoNaming(rec.Owner, gone)
	}
	for _, o := range slices.Backward(candidates) {
		for _, other := range k.Records.TakeAll(o) {
			state, _ := k.Life(other)
			i := slices.IndexFunc(other.Elements, gone.SameKey)
			if i >= 0 && state != life.Dead && o != rec.Owner {
				return other.Elements[i], true
			}
		}
	}
	return nft.Element{}, false
}

// alsoNaming returns the other owners whose records name an element with the key of gone.
func (k *Kernel) alsoNaming(not owner.Key, gone nft.Element) (owners []owner.Key) {
	if k.all == nil {
		k.all, _ = k.Records.List("") // a torn record names nothing
	}
	for _, rec := range k.all {
		if rec.Owner != not && slices.ContainsFunc(rec.Elements, gone.SameKey) {
			owners = append(owners, rec.Owner)
		}
	}
	return owners
}
