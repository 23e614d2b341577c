// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
)

// Two attachments may need elements of the same key: networks with equal subnets assign
// one address twice, and a container publishes a port for two networks. The last one to
// come has the element, and its record names the earlier owners; when it goes, the same
// transaction restores the element of the last living one.

// Displace notes in rec the owner of an element before rec's owner takes it. The session
// keeps the earlier owner's records locked, so that no DEL of it runs meanwhile.
func (k *Kernel) Displace(rec *record.Record, from owner.Key) error {
	before := k.Records.TakeAll(from)
	if len(before) == 0 {
		return nil // no owner to restore it for
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

// unique keeps the last of equal ones.
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

// Withdraw queues the removal of a record's firewall elements, and restores those of
// displaced owners.
func (k *Kernel) Withdraw(rec *record.Record) { k.withdraw(rec, rec.Elements) }

func (k *Kernel) withdraw(rec *record.Record, elems []nft.Element) {
	if len(rec.Displaced) == 0 && rec.Noted {
		k.NFT.Remove(elems...)
		return
	}
	k.NFT.Withdraw(func(gone nft.Element) (nft.Element, bool) { return k.heir(rec, gone) }, elems...)
}

// heir is the element that replaces one of rec's.
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

// alsoNaming returns the other owners whose records name an element with gone's key.
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
