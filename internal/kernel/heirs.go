// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
)

// Two attachments may need elements with the same key: networks with equal subnets assign one
// address twice, or a container publishes a port for two networks. The attachment that came last
// has the element, and its record names the earlier owners. When a DEL of that attachment removes
// the element, the same transaction gives the element to the last earlier owner that is still
// alive.

// Displace adds the current owner of an element to rec before rec's owner takes the element. The
// session keeps the current owner's records locked, so that no DEL of that owner runs at the same
// time.
func (k *Kernel) Displace(rec *record.Record, from owner.Key) error {
	done := displacement{rec, from}
	if k.displacing[done] { // of another element: the records are still locked
		return nil
	}
	before := k.Records.ReadAllLocked(from)
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
	if !slices.Equal(now, rec.Displaced) || noted != rec.Noted {
		rec.Displaced, rec.Noted = now, noted
		if err := k.Records.Write(rec); err != nil {
			return err
		}
	}
	k.displacing[done] = true
	return nil
}

// displacement is a record whose attachment takes elements of another.
type displacement struct {
	by   *record.Record
	from owner.Key
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
func (k *Kernel) displaced(conflict *nft.ConflictError) (warning, err error) {
	from, _ := nft.OwnerOf(conflict.Have.Comment)
	for _, rec := range slices.Backward(k.adding) {
		if !k.names(rec, conflict.Want) {
			continue
		}
		had := len(rec.Displaced)
		err = k.Displace(rec, owner.Key(from))
		if len(rec.Displaced) > had {
			_, names, _ := strings.Cut(conflict.Have.Comment, " ")
			conflict.Have.Comment = ""
			warning = fmt.Errorf("%s has the address too: %s; give each network a subnet of its own", names, conflict.Have)
		}
		return warning, err
	}
	return nil, nil
}

// Withdraw queues the removal of a record's firewall elements and restores the elements of
// displaced owners.
func (k *Kernel) Withdraw(rec *record.Record) { k.withdraw(rec, rec.Elements) }

func (k *Kernel) withdraw(rec *record.Record, elems []nft.Element) {
	if len(rec.Displaced) == 0 && rec.Noted {
		k.NFT.Remove(elems...)
		return
	}
	h := &heirs{k: k, rec: rec, elems: elems}
	k.NFT.Withdraw(h.of, elems...)
}

// names reports whether a record names an element with the key of e.
func (k *Kernel) names(rec *record.Record, e nft.Element) bool {
	if k.naming[rec] == nil {
		k.naming[rec] = placesOf(rec.Elements)
	}
	return k.naming[rec][placeOf(e)]
}

// heirs finds the elements that replace removed elements of a record.
type heirs struct {
	k     *Kernel
	rec   *record.Record
	elems []nft.Element

	found map[place]nft.Element // nil before the first question
}

// of returns the element of an earlier owner that replaces a removed element.
func (h *heirs) of(gone nft.Element) (nft.Element, bool) {
	if h.found == nil {
		h.find()
	}
	e, ok := h.found[placeOf(gone)]
	return e, ok
}

// find reads the records of the earlier owners, the last one first.
func (h *heirs) find() {
	h.found = make(map[place]nft.Element)
	candidates := h.rec.Displaced
	if !h.rec.Noted {
		candidates = h.alsoNaming()
	}
	for _, o := range slices.Backward(candidates) {
		if o == h.rec.Owner {
			continue
		}
		for _, other := range h.k.Records.ReadAllLocked(o) {
			if h.k.Lives(other) {
				h.add(other.Elements)
			}
		}
	}
}

func (h *heirs) add(elems []nft.Element) {
	for _, e := range elems {
		if _, ok := h.found[placeOf(e)]; !ok {
			h.found[placeOf(e)] = e
		}
	}
}

// alsoNaming returns the other owners whose records name an element with the key of one that is removed.
func (h *heirs) alsoNaming() (owners []owner.Key) {
	if h.k.all == nil {
		h.k.all, _ = h.k.Records.List("") // a torn record names nothing
	}
	removed := placesOf(h.elems)
	for _, rec := range h.k.all {
		if rec.Owner != h.rec.Owner && slices.ContainsFunc(rec.Elements, func(e nft.Element) bool { return removed[placeOf(e)] }) {
			owners = append(owners, rec.Owner)
		}
	}
	return owners
}
