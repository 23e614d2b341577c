// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/store"
)

// claim sees to it that this node has a block of each subnet of a network. The
// world tells whether there is anything to do; what is done goes by the store.
func (a *Agent) claim(ctx context.Context, w *world, n *store.Network) error {
	if h := holdingOf(n, a.self.ID, w.blocksOf(n.Name), w.Own[n.Name]); h.complete() && len(h.extra) == 0 {
		a.mirror.remember(n.Name, h.have)
		return nil
	}
	all, err := a.blocksNow(ctx, w, n)
	if err != nil {
		return err
	}
	h := holdingOf(n, a.self.ID, all, w.Own[n.Name])
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

// blocksNow are the blocks of a network: the store's, and what it has lost. One that
// cannot be read is as it was known, and still has its key, so no host can take it.
func (a *Agent) blocksNow(ctx context.Context, w *world, n *store.Network) ([]store.Block, error) {
	blocks, _, err := list(ctx, a.opts.Store.Blocks(), n.Name+"/")
	all := sorted(blocks)
	switch {
	case err == nil:
		all = append(all, beside(w.Missing.Blocks, n.Name, all)...)
		for _, b := range beside(w.Blocks, n.Name, all) {
			if b.Node != a.self.ID && possible(n, b.Prefix) { // given back, or the store is another one since: this host will hear which
				return nil, fmt.Errorf("the store no longer has block %s of %s: waiting to hear of it", b.Prefix, w.nodeName(b.Node))
			}
		}
		return all, nil
	case errors.Is(err, store.ErrUnreadable):
		return append(all, beside(w.Blocks, n.Name, all)...), nil
	}
	return nil, err
}

// yield gives up blocks that are another host's now, when no container of this host
// has an address of them. This host routes them to the other one from then on, also
// while no block is free for itself.
func (a *Agent) yield(w *world, n *store.Network, all []store.Block) error {
	lost := all[0]
	used, err := a.used(n.Name, w.Own[n.Name])
	if err != nil {
		return err
	}
	if used > 0 {
		return fmt.Errorf("block %s of this host is %s's now, and %d addresses of it are in use here: remove those containers, and make the Docker network again",
			lost.Prefix, w.nodeName(lost.Node), used)
	}
	a.opts.Log("network %s: block %s of this host is %s's now: taking another one", n.Name, lost.Prefix, w.nodeName(lost.Node))
	a.mirror.remember(n.Name, slices.DeleteFunc(slices.Clone(w.Own[n.Name]), func(own netip.Prefix) bool {
		return slices.ContainsFunc(all, func(b store.Block) bool { return b.Prefix.Overlaps(own) })
	}))
	return nil
}

// giveBack gives back blocks that are more than one of a subnet, once nobody has
// an address of them.
func (a *Agent) giveBack(ctx context.Context, n *store.Network, extra []store.Block) error {
	var errs []error
	for _, b := range extra {
		free, err := a.free(n.Name, b.Prefix)
		if free {
			a.opts.Log("network %s: giving back block %s", n.Name, b.Prefix)
			err = a.dropBlock(ctx, b)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// used counts the addresses of blocks that containers of this host have.
func (a *Agent) used(network string, blocks []netip.Prefix) (n int, err error) {
	return usedBelow(a.opts.Paths.CNI, network, blocks)
}

// usedBelow counts by host-local's files: they are Docker's and everybody else's.
// With an error nobody knows, and nothing may go.
func usedBelow(cni, network string, blocks []netip.Prefix) (n int, err error) {
	entries, err := os.ReadDir(filepath.Join(cni, "networks", network))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // no address was ever given
	}
	if err != nil {
		return 0, fmt.Errorf("count addresses in use: %w", err)
	}
	for _, e := range entries {
		addr, err := netip.ParseAddr(strings.ReplaceAll(e.Name(), "_", ":")) // host-local's, on file systems without colons
		if err == nil && slices.ContainsFunc(blocks, func(b netip.Prefix) bool { return b.Contains(addr) }) {
			n++
		}
	}
	return n, nil
}

// maxRaces bounds how often somebody else may be faster.
const maxRaces = 100

// claimOne creates a block: the one we had, or a free one, or one whose node is
// long gone.
func (a *Agent) claimOne(ctx context.Context, w *world, n *store.Network, subnet netip.Prefix, blocks []store.Block) (store.Block, error) {
	taken := takenOf(n, subnet, blocks)
	for range maxRaces {
		prefix, ok := old(n, subnet, w.Own[n.Name], taken)
		had := ok
		if err := w.Missing.refuse(n, subnet); !ok && err != nil {
			return store.Block{}, err
		}
		if !ok {
			prefix, ok = freeBlock(subnet, bitsOf(n, subnet), taken, a.self.ID+" "+n.Name)
		}
		if !ok {
			return a.reclaim(ctx, w, n, subnet, blocks)
		}
		b := store.Block{Network: n.Name, Prefix: prefix, Node: a.self.ID}
		switch err := a.createBlock(ctx, b); {
		case err == nil:
			return b, nil
		case !errors.Is(err, store.ErrExists):
			return b, fmt.Errorf("claim block %s: %w", prefix, err)
		case had: // it may be in use here: see yield
			return b, fmt.Errorf("claim block %s, which was this host's: another host was faster", prefix)
		}
		taken = append(taken, prefix) // somebody was faster
	}
	return store.Block{}, fmt.Errorf("claim a block of %s: others were faster %d times", subnet, maxRaces)
}

// takenOf are the blocks that keep hosts from others of a subnet.
func takenOf(n *store.Network, subnet netip.Prefix, blocks []store.Block) (out []netip.Prefix) {
	for _, b := range blocks {
		if b.Prefix.Bits() >= bitsOf(n, subnet) { // no host can have claimed a wider one
			out = append(out, b.Prefix)
		}
	}
	return out
}

// old is the block that this node had, if it can have it again.
func old(n *store.Network, subnet netip.Prefix, had, taken []netip.Prefix) (netip.Prefix, bool) {
	i := slices.IndexFunc(had, func(p netip.Prefix) bool { return fits(n, subnet, p) && !slices.ContainsFunc(taken, p.Overlaps) })
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
	if at, err := a.opts.Store.Blocks().Get(ctx, b.Key()); err == nil && at.Object.Node == a.self.ID {
		return nil // the answer to an earlier call was lost
	}
	return err
}

// dropBlock gives a block back, unless it is not what it was.
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

// reclaim takes the block of the node that is gone for longest, if for long
// enough. Two that do so at once delete the same, and one of them creates it. A
// store that lost its data cannot say which hosts were there.
func (a *Agent) reclaim(ctx context.Context, w *world, n *store.Network, subnet netip.Prefix, blocks []store.Block) (store.Block, error) {
	holders, err := a.holders(ctx, w, n, subnet, blocks)
	if err != nil {
		return store.Block{}, err
	}
	if time.Since(w.Doubted) < a.opts.Reclaim {
		return store.Block{}, fmt.Errorf("no block of %s is free, and the store lost its data less than %v ago: %s", subnet, a.opts.Reclaim, tellHolders(holders))
	}
	for _, h := range holders {
		if h.present || h.lasts || !h.lasting && a.wall().Sub(h.seen) < a.opts.Reclaim {
			continue
		}
		b := store.Block{Network: n.Name, Prefix: h.Prefix, Node: a.self.ID}
		if err := a.dropBlock(ctx, h.Block); err == nil && a.createBlock(ctx, b) == nil {
			a.opts.Log("network %s: %s, the holder of block %s, was not seen since %s", n.Name, h.name, h.Prefix, h.seen.Format(time.RFC3339))
			return b, nil
		}
	}
	return store.Block{}, fmt.Errorf("no block of %s is free: %s", subnet, tellHolders(holders))
}

// holder is who has a block.
type holder struct {
	store.Block
	name    string
	seen    time.Time
	present bool
	lasting bool // its node has a lasting endpoint as long as its blocks are its
	lasts   bool // that is there
}

// holders are those who have blocks of a subnet, the longest unseen first. A
// node that was forgotten was never seen.
func (a *Agent) holders(ctx context.Context, w *world, n *store.Network, subnet netip.Prefix, blocks []store.Block) ([]holder, error) {
	nodes, _, err := list(ctx, a.opts.Store.Nodes(), "")
	if err != nil {
		return nil, err
	}
	present, err := a.hung(ctx, presence)
	if err != nil {
		return nil, err
	}
	lasts, err := a.hung(ctx, lasting)
	if err != nil {
		return nil, err
	}
	var out []holder
	for _, b := range blocks {
		if fits(n, subnet, b.Prefix) {
			node, known := nodes[b.Node]
			if !known {
				node, _ = w.node(b.Node) // it is missing, or was forgotten
			}
			out = append(out, holder{b, cmp.Or(node.Name, b.Node), node.Seen, present[b.Node], node.Lasting, lasts[b.Node]})
		}
	}
	slices.SortStableFunc(out, func(a, b holder) int { return a.seen.Compare(b.seen) })
	return out, nil
}

// hung are the nodes with an endpoint of their own on a network.
func (a *Agent) hung(ctx context.Context, network string) (map[string]bool, error) {
	there, _, err := list(ctx, a.opts.Store.Endpoints(), network+"/")
	out := map[string]bool{}
	for _, e := range there {
		out[e.Node] = true
	}
	return out, err
}

// maxTold bounds how many holders an error names.
const maxTold = 8

func tellHolders(all []holder) string {
	var out []string
	for _, h := range all[:min(len(all), maxTold)] {
		state := "present"
		if !h.present {
			state = "last seen " + h.seen.Format(time.RFC3339)
		}
		out = append(out, fmt.Sprintf("%s has %s (%s)", h.name, h.Prefix, state))
	}
	if more := len(all) - maxTold; more > 0 {
		out = append(out, fmt.Sprintf("%d more", more))
	}
	return strings.Join(out, ", ")
}
