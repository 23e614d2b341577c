// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// release opens those closed addresses whose pods the program has. If nothing stays closed and no pod has a policy, it
// removes the base chains in the same transaction.
//
// An ADD may close another address at any moment, without a lock and without a change of the
// revision. So the kernel refuses this transaction if the ruleset changed since we looked.
func (e *Enforcer) release(ctx context.Context, owners map[netip.Addr]owner.Key, keep bool) error {
	if !e.base {
		return nil
	}
	r := &releasing{transaction: *e.transaction(nil), owners: owners, keep: keep}
	e.fw.Queue(r)
	began := time.Now()
	if err := e.fw.Commit(ctx); err != nil {
		return err
	}
	if r.sent {
		e.committed(began)
		e.revision, e.exists = r.next, true
	}
	e.base = !r.bare
	return nil
}

// Clear removes all policies, and opens what ADDs closed. Remove the mirror before it, so that no ADD
// closes anything more. An ADD that read the mirror before may make the base chains again, which use the sets of
// sources. Then the kernel refuses to remove these sets (EBUSY), and Clear begins anew.
func (e *Enforcer) Clear(ctx context.Context) error {
	const tries = 5
	for try := 1; ; try++ {
		if err := e.clearOnce(ctx); try == tries || !errors.Is(err, unix.EBUSY) {
			return err
		}
	}
}

func (e *Enforcer) clearOnce(ctx context.Context) error {
	owners := make(map[netip.Addr]owner.Key)
	for _, set := range slices.Concat(closedSets()...) {
		list, err := e.fw.List(set)
		if err != nil {
			return fmt.Errorf("remove network policies: %w", err)
		}
		for _, c := range list {
			a, _ := netip.AddrFromSlice(c.Key)
			key, _ := nft.OwnerOf(c.Comment)
			owners[a] = owner.Key(key)
		}
	}
	e.attached = nil
	if err := e.Load(ctx, &policy.Program{}, owners); err != nil || e.base {
		return err
	}
	for _, family := range []nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyBridge} {
		e.fw.Queue(nft.DropSources(family))
	}
	return e.fw.Commit(ctx)
}

// releasing is the work of a release.
type releasing struct {
	transaction
	owners map[netip.Addr]owner.Key
	keep   bool // a pod has a policy
	sent   bool // a plan had work to do
	bare   bool // the last plan removed the base chains
}

// Guarded makes the commit fail if another process changes the ruleset after Plan, for example because an ADD closes
// an address.
func (r *releasing) Guarded() {}

// Needs reports that the table need not be made.
func (r *releasing) Needs() bool { return false }

// Plan reads what is closed now, and returns the work that opens the addresses of known attachments.
func (r *releasing) Plan(c *nft.Conn) (func(*nftables.Conn) error, error) {
	if do, err := r.transaction.Plan(c); do == nil || err != nil {
		return nil, err // do == nil without an error: the kernel carried out the last plan, but its answer got lost
	}
	r.sent, r.bare = false, false
	steps, err := r.released(r.owners, r.keep)
	if err != nil || len(steps) == 0 {
		return nil, err
	}
	r.steps, r.sent, r.bare = steps, true, steps[len(steps)-1].what == removeBase().what
	return r.encode, nil
}

// released returns the steps of a release.
func (e *Enforcer) released(owners map[netip.Addr]owner.Key, keep bool) (steps []step, err error) {
	left := false
	for _, set := range slices.Concat(closedSets()...) {
		list, err := e.fw.List(set)
		if err != nil {
			return nil, err
		}
		open, more := splitByOwner(list, owners)
		left = left || len(more) > 0
		steps = append(steps, openSteps(set, open)...)
	}
	if !left && !keep {
		steps = append(steps, removeBase())
	}
	return steps, nil
}

func closedSets() (sets [][]string) {
	for _, of := range nft.ClosedSets() {
		sets = append(sets, of[:])
	}
	return sets
}

// splitByOwner divides closed elements into those of these owners, and others.
func splitByOwner(list []nft.Element, owners map[netip.Addr]owner.Key) (open, others []nft.Element) {
	for _, e := range list {
		a, _ := netip.AddrFromSlice(e.Key)
		key, owned := nft.OwnerOf(e.Comment)
		if by, ok := owners[a]; ok && owned && by == owner.Key(key) {
			open = append(open, e)
		} else {
			others = append(others, e)
		}
	}
	return open, others
}

// openSteps removes closed elements.
func openSteps(set string, open []nft.Element) (steps []step) {
	var list []element
	for _, e := range open {
		if a, ok := netip.AddrFromSlice(e.Key); ok {
			list = append(list, element{first: a, last: a})
		}
	}
	return removeElements(set, list)
}

// removeBase removes the base chains with all that belongs to them. The maps from pods to chains are
// empty then.
func removeBase() step {
	base := stateOf(&policy.Program{}, true)
	return step{"remove the base chains", 50, func(enc *nftables.Conn) error {
		var steps []step
		for _, name := range slices.Backward(base.byDepth()) {
			steps = append(steps, deleteChain(name))
		}
		for name := range base.sets {
			steps = append(steps, deleteSet(name))
		}
		for name := range base.counters {
			steps = append(steps, deleteCounter(name))
		}
		set, _ := nft.PolicyRevision(0)
		return doAll(enc, append(steps, step{do: func(enc *nftables.Conn) error {
			return enc.SetDeleteElements(set, []nftables.SetElement{nft.PolicyBase(baseVersion)})
		}}))
	}}
}
