// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"bytes"
	"context"
	"slices"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin/kernel"
)

// strayElements returns elements of networks, such as a masquerade, that no shared fact
// holds: the fact's file was torn when its last holder went, or the run directory was
// lost. While an attachment of the network may live, it may need them. The elements were
// read before the facts, and an ADD writes the fact first, so a new element always has its
// fact here.
func (c *collector) strayElements(ev *evidence) (list []*Stray) {
	_, facts, _ := ev.k.Records.Facts() // gather reports broken ones
	for _, e := range ev.ofNetworks {
		if holds(facts, e) || ev.mayHaveLiving(e.Comment) {
			continue
		}
		named := e
		named.Comment = ""
		s := &Stray{Object: Object{"element", named.String()}, State: Dead, Why: "no network has it"}
		s.remove = func(ctx context.Context, k *kernel.Kernel) error { return removeElement(ctx, k, e) }
		c.ageless(s, key("element", named.String()))
		list = append(list, s)
	}
	return list
}

func holds(facts []record.Fact, e nft.Element) bool {
	return slices.ContainsFunc(facts, func(f record.Fact) bool {
		return slices.ContainsFunc(f.Elements, func(x nft.Element) bool {
			return x.Set == e.Set && bytes.Equal(x.Key, e.Key) && bytes.Equal(x.KeyEnd, e.KeyEnd)
		})
	})
}

// mayHaveLiving reports whether the network has an attachment that may be alive.
func (ev *evidence) mayHaveLiving(network string) bool {
	for _, a := range ev.all {
		if a.Network == network && a.State != Dead {
			return true
		}
	}
	return false
}

// removeElement removes an element unless a fact holds it by now. It restores other
// elements within its range, and the element itself if an ADD took the fact meanwhile.
func removeElement(ctx context.Context, k *kernel.Kernel, e nft.Element) error {
	_, facts, err := k.Records.Facts()
	if err != nil || holds(facts, e) {
		return err
	}
	k.NFT.Remove(e)
	for _, f := range facts {
		k.NFT.Add(f.Elements...)
	}
	if err := k.NFT.Commit(ctx); err != nil {
		return err
	}
	if _, facts, err = k.Records.Facts(); err == nil && holds(facts, e) {
		k.NFT.Add(e)
		err = k.NFT.Commit(ctx)
	}
	return err
}
