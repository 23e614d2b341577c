// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/record"
)

// recordTime is how long the agent waits for an ADD or DEL that is using a record. An ADD or DEL
// waits for the agent only for milliseconds.
const recordTime = 100 * time.Millisecond

// errBusy means that an ADD or DEL is using a pod's record. The next pass, seconds later, changes
// the pod.
var errBusy = errors.New("an ADD or DEL is working on it")

// pods returns the records of masqueraded pods, by namespace.
func (e *egress) pods() (map[string][]*record.Record, error) {
	store := record.New(e.paths.Run)
	defer store.Close()
	records, _, err := store.Scan("")
	pods := map[string][]*record.Record{}
	for _, r := range records {
		if namespace, _, ok := strings.Cut(r.Pod, "/"); ok && slices.ContainsFunc(r.Elements, nft.Element.Masquerades) {
			pods[namespace] = append(pods[namespace], r)
		}
	}
	return pods, err
}

// apply changes the pods that differ. remaining counts the pods with an egress address, and the pods
// whose change failed.
func (e *egress) apply(ctx context.Context, pods map[string][]*record.Record, uses map[string][]netip.Addr) (remaining int, errs []error) {
	fw, store := nft.Open(e.paths.Run), record.New(e.paths.Run)
	defer store.Close()
	defer fw.Close() //nolint:errcheck // committed
	for namespace, list := range pods {
		for _, r := range list {
			p := pod{fw, store, uses[namespace]}
			err := p.change(ctx, r)
			if e.busy = e.busy || errors.Is(err, errBusy); err != nil && !errors.Is(err, errBusy) {
				errs = append(errs, fmt.Errorf("pod %s: change its egress address: %w", r.Pod, err))
			}
			if err != nil || len(p.use) > 0 {
				remaining++
			}
		}
	}
	return remaining, errs
}

// pod is a masqueraded pod with its wanted egress addresses.
type pod struct {
	fw    *nft.Conn
	store *record.Dir
	use   []netip.Addr
}

// change gives a pod its addresses, if its record or the kernel differs. It compares before it
// takes the record's lock, because in most passes nothing differs.
func (p pod) change(ctx context.Context, r *record.Record) error {
	if same, err := p.same(r); same || err != nil {
		return err
	}
	now, free, err := p.store.TryReadLocked(r.Network, r.Owner, r.Plugin, recordTime)
	if err != nil || now == nil && free {
		return err
	}
	if !free {
		return errBusy
	}
	defer p.store.Unlock(r.Network, r.Owner, r.Plugin)
	return p.write(ctx, now)
}

// write changes record and kernel. It adds an element to the record before the kernel, and removes
// it from the kernel before the record, so a DEL finds every element by the record.
func (p pod) write(ctx context.Context, r *record.Record) error {
	want := p.wanted(r)
	gone := slices.DeleteFunc(had(r), func(e nft.Element) bool { return slices.ContainsFunc(want, e.SameKey) })
	elements := slices.DeleteFunc(slices.Clone(r.Elements), func(e nft.Element) bool { _, ok := e.Egress(); return ok })
	r.Elements = slices.Concat(elements, want, gone)
	if err := p.store.Rewrite(r); err != nil {
		return err
	}
	list, err := p.masqueraded(want)
	if err != nil {
		return err
	}
	p.fw.AddOrDecide(func(*nft.ConflictError) error { return nft.ErrKeep }, list...)
	p.fw.Remove(gone...)
	if err := p.fw.Commit(ctx); err != nil || len(gone) == 0 {
		return err
	}
	r.Elements = append(elements, want...)
	return p.store.Rewrite(r)
}

// wanted returns the egress elements that the pod should have.
func (p pod) wanted(r *record.Record) (list []nft.Element) {
	for _, e := range r.Elements {
		if egress, ok := e.Leaving(p.use); ok {
			list = append(list, egress)
		}
	}
	return list
}

// had returns the egress elements of a record.
func had(r *record.Record) []nft.Element {
	return slices.DeleteFunc(slices.Clone(r.Elements), func(e nft.Element) bool { _, ok := e.Egress(); return !ok })
}

// same reports whether the record and the kernel have exactly the wanted elements.
func (p pod) same(r *record.Record) (bool, error) {
	want := p.wanted(r)
	if !slices.EqualFunc(want, had(r), sameElement) {
		return false, nil
	}
	list, err := p.masqueraded(want)
	if err != nil {
		return false, err
	}
	for _, e := range list {
		have, there, err := p.fw.Get(e.Set, e.Key)
		if err != nil || !there || !sameElement(have, e) {
			return false, err
		}
	}
	return true, nil
}

func sameElement(a, b nft.Element) bool { return a.SameKey(b) && string(a.Data) == string(b.Data) }

// masqueraded leaves out elements whose address the kernel does not masquerade, because another
// program flushed the table; `patchbay repair` restores both. It also leaves out addresses that now
// belong to another attachment.
func (p pod) masqueraded(list []nft.Element) (out []nft.Element, err error) {
	for _, e := range list {
		set := nft.SetMasqueraded4
		if e.Set == nft.SetEgress6 {
			set = nft.SetMasqueraded6
		}
		have, there, err := p.fw.Get(set, e.Key)
		if err != nil {
			return nil, err
		}
		mine, _ := nft.OwnerOf(e.Comment)
		if its, _ := nft.OwnerOf(have.Comment); there && mine == its {
			out = append(out, e)
		}
	}
	return out, nil
}

// These say how long, and how often, ClearEgress waits for ADDs and DELs.
const (
	clearTime  = 10 * time.Second
	clearPause = 300 * time.Millisecond
)

// ClearEgress removes the egress addresses of all pods of this node. It runs when the agent is
// removed. It returns an error if an ADD or DEL keeps a pod's record all the time.
func ClearEgress(ctx context.Context, p paths.Paths) error {
	ctx, cancel := context.WithTimeout(ctx, clearTime)
	defer cancel()
	e := newEgress(p, func(error) {}, func(string, ...any) {})
	for {
		if err := e.pass(ctx); err != nil || e.clean >= enoughPasses {
			return err
		}
		if !clock.Sleep(ctx, clearPause) {
			return fmt.Errorf("remove the egress addresses of pods: %w: run it again", errBusy)
		}
	}
}
