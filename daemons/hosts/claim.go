// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/internal/order"
)

// claim makes sure that this node holds a block of each subnet of a network. The cached world
// shows whether there is something to do. For each change, claim reads the store again.
func (a *Agent) claim(ctx context.Context, w *world, n *store.Network) error {
	if h := holdingOf(n, a.self, w.blocksOf(n.Name), w.Own[n.Name]); h.complete() && len(h.extra) == 0 {
		a.mirror.remember(n.Name, h.have)
		return nil
	}
	all, err := a.blocksNow(ctx, w, n)
	if err != nil {
		return err
	}
	h := holdingOf(n, a.self, all, w.Own[n.Name])
	if len(h.lost) > 0 {
		if err := a.yield(w, n, h.lost); err != nil {
			return err
		}
	}
	for _, subnet := range h.missing {
		b, err := a.claimOne(ctx, w, n, subnet, all)
		if err != nil {
			former := slices.DeleteFunc(h.extra, func(b store.Block) bool { return possible(n, b.Prefix) })
			return errors.Join(err, a.giveBack(ctx, n, former))
		}
		all = append(all, b)
		h.have = append(h.have, b.Prefix)
		a.opts.Log("network %s: claimed block %s", n.Name, b.Prefix)
	}
	a.mirror.remember(n.Name, h.have)
	return a.giveBack(ctx, n, h.extra)
}

// blocksNow returns the blocks of a network that the store has, and those that the store has
// lost. A block that cannot be read keeps its last known value. Its key still exists, so no other
// host can claim it.
func (a *Agent) blocksNow(ctx context.Context, w *world, n *store.Network) ([]store.Block, error) {
	blocks, _, err := list(ctx, a.opts.Store.Blocks(), n.Name+"/")
	all := order.Values(blocks)
	switch {
	case err == nil:
		all = append(all, beside(w.Missing.Blocks, n.Name, all)...)
		for _, b := range beside(w.Blocks, n.Name, all) {
			if b.Node != a.self && possible(n, b.Prefix) { // the block was given back, or another store answers now; the watch will show which
				return nil, fmt.Errorf("the store no longer has block %s of %s: waiting for the event of its deletion", b.Prefix, w.nodeName(b.Node))
			}
		}
		return all, nil
	case errors.Is(err, store.ErrUnreadable):
		return append(all, beside(w.Blocks, n.Name, all)...), nil
	}
	return nil, err
}

// yield gives up blocks that another host now holds, unless a container of this host has an
// address of them. After that this host routes the blocks to the other host, even if there is no
// free block for this host.
func (a *Agent) yield(w *world, n *store.Network, all []store.Block) error {
	why := lostTo(w, &all[0])
	used, err := a.revoke(n.Name, why, w.Own[n.Name], func(own netip.Prefix) bool {
		return slices.ContainsFunc(all, func(b store.Block) bool { return b.Prefix.Overlaps(own) })
	})
	if err != nil {
		return err
	}
	if used > 0 {
		return fmt.Errorf("%s, and %d addresses of it are in use here: remove those containers, and create the Docker network again", why, used)
	}
	a.opts.Log("network %s: %s: claiming another one", n.Name, why)
	return nil
}

// lostTo says which host holds a former block of this host.
func lostTo(w *world, b *store.Block) string {
	return fmt.Sprintf("block %s of this host belongs to %s now", b.Prefix, w.nodeName(b.Node))
}

// giveBack deletes from the store the blocks that this host does not need, once no container
// has an address of them.
func (a *Agent) giveBack(ctx context.Context, n *store.Network, extra []store.Block) error {
	var errs []error
	for _, b := range extra {
		free, err := a.spare(n.Name, b.Prefix)
		if free {
			a.opts.Log("network %s: giving back block %s", n.Name, b.Prefix)
			err = a.dropBlock(ctx, b)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// used counts the addresses of the given blocks that containers of this host have.
func (a *Agent) used(network string, blocks []netip.Prefix) (n int, err error) {
	return a.files().used(network, blocks)
}

// maxRaces limits how often a claim may lose against another host.
const maxRaces = 100

// claimOne creates a block. It prefers the block that this node had before. Otherwise it takes a
// free one, or else the block of a node that has been gone for long.
func (a *Agent) claimOne(ctx context.Context, w *world, n *store.Network, subnet netip.Prefix, blocks []store.Block) (store.Block, error) {
	claimed := claimedBlocks(n, subnet, blocks)
	for range maxRaces {
		prefix, ok := old(n, subnet, w.Own[n.Name], claimed)
		had := ok
		if err := w.Missing.refuse(n, subnet); !ok && err != nil {
			return store.Block{}, err
		}
		if !ok {
			prefix, ok = freeBlock(subnet, bitsOf(n, subnet), claimed, a.self+" "+n.Name)
		}
		if !ok {
			return a.reclaim(ctx, w, n, subnet, blocks)
		}
		b := store.Block{Network: n.Name, Prefix: prefix, Node: a.self}
		switch err := a.createBlock(ctx, b); {
		case err == nil:
			a.claimed = true
			return b, nil
		case !errors.Is(err, store.ErrExists):
			return b, fmt.Errorf("claim block %s: %w", prefix, err)
		case had: // addresses of the block may be in use here (see yield)
			return b, fmt.Errorf("claim block %s, which was this host's: another host claimed it first", prefix)
		}
		claimed = append(claimed, prefix) // another host claimed it first
	}
	return store.Block{}, fmt.Errorf("claim a block of %s: other hosts claimed each choice first, %d times", subnet, maxRaces)
}

// claimedBlocks returns the blocks that a claim in a subnet must not overlap.
func claimedBlocks(n *store.Network, subnet netip.Prefix, blocks []store.Block) (out []netip.Prefix) {
	for _, b := range blocks {
		if b.Prefix.Bits() >= bitsOf(n, subnet) { // no host can have claimed a wider block
			out = append(out, b.Prefix)
		}
	}
	return out
}

// old returns the block that this node had, if the node can claim it again.
func old(n *store.Network, subnet netip.Prefix, had, claimed []netip.Prefix) (netip.Prefix, bool) {
	i := slices.IndexFunc(had, func(p netip.Prefix) bool { return fits(n, subnet, p) && !slices.ContainsFunc(claimed, p.Overlaps) })
	if i < 0 {
		return netip.Prefix{}, false
	}
	return had[i], true
}

func (a *Agent) createBlock(ctx context.Context, b store.Block) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	_, err := a.opts.Store.Blocks().Create(ctx, b, nil)
	if !errors.Is(err, store.ErrExists) {
		return err
	}
	if at, err := a.opts.Store.Blocks().Get(ctx, b.Key()); err == nil && at.Object.Node == a.self {
		return nil // an earlier call created the block, but its answer was lost
	}
	return err
}

// dropBlock deletes a block from the store, unless the block has changed.
func (a *Agent) dropBlock(ctx context.Context, b store.Block) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	at, err := a.opts.Store.Blocks().Get(ctx, b.Key())
	if errors.Is(err, store.ErrNotFound) || (err == nil && at.Object != b) {
		return nil
	}
	if err != nil {
		return err
	}
	return a.opts.Store.Blocks().Delete(ctx, b.Key(), at.Revision)
}

// reclaim takes the block of the node that has been gone longest, if that is long enough. If two
// hosts do so at the same time, both delete the block, and only one of them creates it again. If
// the store has lost its data recently, it cannot say which hosts were present, and reclaim
// refuses.
func (a *Agent) reclaim(ctx context.Context, w *world, n *store.Network, subnet netip.Prefix, blocks []store.Block) (store.Block, error) {
	holders, err := a.holders(ctx, w, n, subnet, blocks)
	if err != nil {
		return store.Block{}, err
	}
	if a.doubts(w) {
		return store.Block{}, fmt.Errorf("no block of %s is free, and none is taken back, because the store lost its data less than %v ago: %s", subnet, a.opts.Reclaim, describeHolders(holders))
	}
	for _, h := range holders {
		if !a.reclaimable(h) {
			continue
		}
		b := store.Block{Network: n.Name, Prefix: h.Prefix, Node: a.self}
		if err := a.dropBlock(ctx, h.Block); err == nil && a.createBlock(ctx, b) == nil {
			a.claimed = true
			a.opts.Log("network %s: %s, the holder of block %s, has not been seen since %s", n.Name, h.name, h.Prefix, h.seen.Format(time.RFC3339))
			return b, nil
		}
	}
	return store.Block{}, fmt.Errorf("no block of %s is free: %s", subnet, describeHolders(holders))
}

// doubts reports whether the store has lost its data so recently that it cannot say which hosts are gone.
func (a *Agent) doubts(w *world) bool { return time.Since(w.Doubted) < a.opts.Reclaim }

// reclaimable reports whether a node has been absent for so long that another one may claim its block. An agent that began after
// a loss of the store's data does not know of it. So it also waits for a node without a record, which may be
// a host that has not written its record again.
func (a *Agent) reclaimable(h holder) bool {
	switch {
	case h.present, h.lasts, h.seen.IsZero() && time.Since(a.began) < a.opts.Reclaim:
		return false
	case h.lasting:
		return true
	}
	return a.wall().Sub(h.seen) >= a.opts.Reclaim
}

// holder is a block, and what is known about its node.
type holder struct {
	store.Block
	name    string
	seen    time.Time
	present bool
	lasting bool // the node's agent has put an endpoint on a long session into this history (network _lasting)
	lasts   bool // that endpoint exists
}

// holders returns the blocks of a subnet with their nodes. The node that has not been seen for
// longest comes first.
func (a *Agent) holders(ctx context.Context, w *world, n *store.Network, subnet netip.Prefix, blocks []store.Block) ([]holder, error) {
	holderOf, err := a.readHolders(ctx, w)
	if err != nil {
		return nil, err
	}
	var out []holder
	for _, b := range blocks {
		if fits(n, subnet, b.Prefix) {
			out = append(out, holderOf(b))
		}
	}
	slices.SortStableFunc(out, func(a, b holder) int { return a.seen.Compare(b.seen) })
	return out, nil
}

// readHolders reads from the store which nodes exist now: events about them may not have come yet. A node
// without a record counts as never seen.
func (a *Agent) readHolders(ctx context.Context, w *world) (func(store.Block) holder, error) {
	nodes, at, err := list(ctx, a.opts.Store.Nodes(), "")
	if err != nil {
		return nil, err
	}
	_, history, err := at.Split()
	if err != nil {
		return nil, err
	}
	present, err := a.nodesOn(ctx, presence)
	if err != nil {
		return nil, err
	}
	lasts, err := a.nodesOn(ctx, lasting)
	return func(b store.Block) holder {
		node, known := nodes[b.Node]
		if !known {
			node, _ = w.node(b.Node) // the store has lost the node's record, or a user has removed it
		}
		return holder{b, cmp.Or(node.Name, b.Node), node.Seen, present[b.Node], lastsIn(&node, history), lasts[b.Node]}
	}, err
}

// lastsIn reports whether a node's endpoint in the network _lasting was made in the current history of the store. Otherwise its
// absence shows nothing.
func lastsIn(n *store.Node, history string) bool { return n.LastingIn != "" && n.LastingIn == history }

// nodesOn returns the nodes that have an endpoint in one of the networks presence and lasting.
func (a *Agent) nodesOn(ctx context.Context, network string) (map[string]bool, error) {
	there, _, err := list(ctx, a.opts.Store.Entries(), network+"/")
	out := map[string]bool{}
	for _, e := range there {
		out[e.Node] = true
	}
	return out, err
}

// maxNamed limits how many objects an error lists.
const maxNamed = 8

func describeHolders(all []holder) string {
	var out []string
	for _, h := range all[:min(len(all), maxNamed)] {
		state := "present"
		if !h.present {
			state = "last seen " + h.seen.Format(time.RFC3339)
		}
		out = append(out, fmt.Sprintf("%s has %s (%s)", h.name, h.Prefix, state))
	}
	if more := len(all) - maxNamed; more > 0 {
		out = append(out, fmt.Sprintf("%d more", more))
	}
	return strings.Join(out, ", ")
}
