// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"bytes"
	"context"
	"slices"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/record"
)

// strayElements are elements of networks, such as a masquerade, that no shared
// fact tells of: the fact's file was torn when its last holder went, or the run
// directory was lost. As long as an attachment of the network may live, it may
// need them. ev has read them before the facts, and an ADD takes the fact first.
func (c *collector) strayElements(ev *evidence) (list []*Stray) {
	_, facts, _ := ev.k.Records.Facts() // gather reports what is broken
	for _, e := range ev.ofNetworks {
		if tells(facts, e) || ev.mayLive(e.Comment) {
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

func tells(facts []record.Fact, e nft.Element) bool {
	return slices.ContainsFunc(facts, func(f record.Fact) bool {
		return slices.ContainsFunc(f.Elements, func(x nft.Element) bool {
			return x.Set == e.Set && bytes.Equal(x.Key, e.Key) && bytes.Equal(x.KeyEnd, e.KeyEnd)
		})
	})
}

// mayLive says whether a network has an attachment that is not dead beyond doubt.
func (ev *evidence) mayLive(network string) bool {
	for _, a := range ev.all {
		if a.Network == network && a.State != Dead {
			return true
		}
	}
	return false
}

// removeElement removes an element unless a fact has it by now, and puts back
// what lay within its range, and the element itself where an ADD took the fact
// while it went.
func removeElement(ctx context.Context, k *kernel.Kernel, e nft.Element) error {
	_, facts, err := k.Records.Facts()
	if err != nil || tells(facts, e) {
		return err
	}
	k.NFT.Remove(e)
	for _, f := range facts {
		k.NFT.Add(f.Elements...)
	}
	if err := k.NFT.Commit(ctx); err != nil {
		return err
	}
	if _, facts, err = k.Records.Facts(); err == nil && tells(facts, e) {
		k.NFT.Add(e)
		err = k.NFT.Commit(ctx)
	}
	return err
}
