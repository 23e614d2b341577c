// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
)

// SweepLost calls remove for attachments of the network that are not on a GC's list, with
// those of their elements that mine selects and no record names. An ADD writes its record
// first, so such an attachment has lost its record. Elements in the plugin's records are
// left to Sweep. The author of the list may have lost the attachment too, so one with a
// living pair stays.
func (k *Kernel) SweepLost(r *plugin.Request, mine func(nft.Element) bool, remove func(*record.Record) error) error {
	living := k.living(r)
	elems, err := k.OwnedElements()
	errs := []error{err}
	lost := make(map[owner.Key][]nft.Element)
	for _, e := range elems {
		key, _ := nft.OwnerOf(e.Comment)
		if o := owner.Key(key); mine(e) && ofNetwork(r.Network, o, e.Comment) && !living[o] {
			lost[o] = append(lost[o], e)
		}
	}
	for o, elems := range lost {
		errs = append(errs, k.Seize(r, o, func() error {
			rec := &record.Record{Plugin: r.Plugin.Name, Network: r.Network, Owner: o}
			rec.Elements = unnamed(elems, k.Records.Standing(r.Network, o))
			if len(rec.Elements) == 0 || k.keepsPair(r, o) {
				return nil
			}
			if err := remove(rec); !errors.Is(err, errLater) {
				return err
			}
			return nil
		}))
	}
	return errors.Join(errs...)
}

// OfOwner returns the elements of an owner that mine selects, by their comments. It lists
// all sets: for a DEL without any other trace of the attachment.
func (k *Kernel) OfOwner(o owner.Key, mine func(nft.Element) bool) ([]nft.Element, error) {
	elems, err := k.OwnedElements()
	return slices.DeleteFunc(elems, func(e nft.Element) bool {
		key, _ := nft.OwnerOf(e.Comment)
		return owner.Key(key) != o || !mine(e)
	}), err
}

// keepsPair reports, with a warning, whether a link of the owner is the host's end of a
// living pair, or cannot be read.
func (k *Kernel) keepsPair(r *plugin.Request, o owner.Key) bool {
	link, err := k.livingPair(o)
	switch {
	case err != nil:
		Warn(r, fmt.Errorf("what owner %s has without a record is kept: %w", o, err))
	case link != "":
		Warn(r, fmt.Errorf("what owner %s has without a record is kept: its link %s carries, so its container lives; its DEL removes it", o, link))
	}
	return err != nil || link != ""
}

func (k *Kernel) livingPair(o owner.Key) (name string, err error) {
	host, err := k.Host()
	if err != nil {
		return "", err
	}
	links, err := host.LinkList()
	for _, l := range links {
		if l.Attrs().Alias == o.Alias() && netstate.Carries(l) && host.Lives(l.Attrs().NetNsID) {
			return l.Attrs().Name, nil
		}
	}
	return "", err
}

// ofNetwork reports whether a comment names the network, and, unless it is truncated, the
// owner's other names.
func ofNetwork(network string, o owner.Key, comment string) bool {
	_, names, _ := strings.Cut(comment, " ")
	parts := strings.Split(names, "/")
	if len(comment) >= nft.MaxComment {
		return len(parts) > 1 && parts[0] == network
	}
	return len(parts) == 3 && owner.Of(network, parts[1], parts[2]) == o
}

// unnamed returns the elements that no record names. A torn record may name any.
func unnamed(elems []nft.Element, records []record.Standing) []nft.Element {
	return slices.DeleteFunc(elems, func(e nft.Element) bool {
		return slices.ContainsFunc(records, func(s record.Standing) bool {
			return s.Record == nil || slices.ContainsFunc(s.Record.Elements, e.SameKey)
		})
	})
}
