// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// ErrExhausted is wrapped by Allocate and Status when a set has no free address
// and none that can be reclaimed.
var ErrExhausted = errors.New("no IP addresses available in range set")

// Request asks for one address from each set.
type Request struct {
	Owner     Holder
	Sets      []RangeSet   // canonical
	Requested []netip.Addr // requested addresses; all of them or none

	// Gone reports that the attachment of a reservation provably does not exist any more. Nil
	// means that nothing is known. It decides two cases. A reservation of an earlier boot
	// is reclaimed when its set is full (or its address is requested). And a repeated ADD
	// of an owner that is gone gets the address that the owner still holds (nerdctl#3355)
	// instead of "duplicate allocation is not allowed".
	Gone func(Reservation) bool

	// Dry finds the addresses without taking them.
	Dry bool
}

// Grant is an address with its prefix length, and the gateway of its range.
type Grant struct {
	Address netip.Prefix
	Gateway netip.Addr
}

// Allocate takes one address from each set, in order, round robin from the last one given
// out. On an error it releases what it took.
func Allocate(tx *Tx, req *Request) ([]Grant, error) {
	a := &allocation{tx: tx, Request: req, wanted: unique(req.Requested)}
	leases, err := a.all()
	if err == nil {
		return leases, nil
	}
	for _, r := range a.taken {
		err = errors.Join(err, tx.Release(r))
	}
	return nil, err
}

type allocation struct {
	*Request
	tx     *Tx
	wanted []netip.Addr // not allocated yet
	taken  []Reservation
}

func unique(in []netip.Addr) []netip.Addr {
	var out []netip.Addr
	seen := map[netip.Addr]bool{}
	for _, a := range in {
		if a = a.Unmap(); !seen[a] {
			seen[a] = true
			out = append(out, a)
		}
	}
	return out
}

func (a *allocation) all() ([]Grant, error) {
	leases := make([]Grant, 0, len(a.Sets))
	for i, set := range a.Sets {
		addr, err := a.one(i, set)
		if err != nil {
			return nil, fmt.Errorf("failed to allocate for range %d: %w", i, err)
		}
		r := set[set.Find(addr)]
		leases = append(leases, Grant{netip.PrefixFrom(addr, r.Subnet.Bits()), r.Gateway})
	}
	if len(a.wanted) > 0 {
		return nil, fmt.Errorf("failed to allocate all requested IPs:%s", list(a.wanted))
	}
	return leases, nil
}

func list(addrs []netip.Addr) string {
	var b strings.Builder
	for _, a := range addrs {
		b.WriteString(" " + a.String())
	}
	return b.String()
}

func (a *allocation) one(i int, set RangeSet) (netip.Addr, error) {
	if want, ok := a.takeWanted(set); ok {
		return a.requested(i, set, want)
	}
	held, ok, err := a.repeated(set)
	if ok || err != nil {
		return held, err
	}
	return a.next(i, set)
}

// takeWanted removes and returns the first requested address that is in set.
func (a *allocation) takeWanted(set RangeSet) (netip.Addr, bool) {
	for i, w := range a.wanted {
		if set.Contains(w) {
			a.wanted = append(a.wanted[:i], a.wanted[i+1:]...)
			return w, true
		}
	}
	return netip.Addr{}, false
}

func (a *allocation) requested(i int, set RangeSet, want netip.Addr) (netip.Addr, error) {
	if want == set[set.Find(want)].Gateway {
		return want, fmt.Errorf("requested ip %s is subnet's gateway", want)
	}
	holder, taken, err := a.tx.Holder(want)
	if err != nil {
		return want, err
	}
	if taken && holder.Owner == a.Owner && a.gone(holder) {
		return want, a.renew(holder)
	}
	if taken && holder.EarlierBoot && a.gone(holder) {
		taken = false
		if err := a.release(holder); err != nil {
			return want, err
		}
	}
	if !taken {
		taken, err = a.claim(i, want)
		taken = !taken
	}
	if err == nil && taken {
		err = fmt.Errorf("requested IP address %s is not available in range set %s", want, set)
	}
	return want, err
}

// repeated answers an ADD of an owner that already has an address of this set.
func (a *allocation) repeated(set RangeSet) (held netip.Addr, ok bool, err error) {
	all, err := a.tx.Held(a.Owner)
	if err != nil {
		return held, false, err
	}
	for _, r := range all {
		if !set.Contains(r.Addr) {
			continue
		}
		if !a.gone(r) {
			return held, false, fmt.Errorf("%s has been allocated to %s, duplicate allocation is not allowed", r.Addr, a.Owner.ID)
		}
		return r.Addr, true, a.renew(r)
	}
	return held, false, nil
}

func (a *allocation) gone(r Reservation) bool { return a.Gone != nil && a.Gone(r) }

// next takes the next free address: at first by the hints, then after a refresh of the
// hints, then after reclaiming reservations of an earlier boot.
func (a *allocation) next(i int, set RangeSet) (netip.Addr, error) {
	addr, ok, err := a.search(i, set)
	if ok || err != nil {
		return addr, err
	}
	if fresh, err := a.tx.Refresh(); err != nil {
		return addr, err
	} else if fresh {
		if addr, ok, err = a.search(i, set); ok || err != nil {
			return addr, err
		}
	}
	if addr, ok, err = a.reclaim(i, set); ok || err != nil {
		return addr, err
	}
	return addr, fmt.Errorf("%w: %s", ErrExhausted, set)
}

func (a *allocation) reclaim(i int, set RangeSet) (netip.Addr, bool, error) {
	all, err := a.tx.List(true)
	if err != nil {
		return netip.Addr{}, false, err
	}
	var dead []Reservation
	for _, r := range all {
		if at := set.Find(r.Addr); at >= 0 && set[at].Gateway != r.Addr && a.gone(r) {
			dead = append(dead, r)
		}
	}
	if len(dead) == 0 {
		return netip.Addr{}, false, nil
	}
	if a.Dry {
		return dead[0].Addr, true, nil
	}
	if _, err := releaseAll(a.tx, dead, nil); err != nil {
		return netip.Addr{}, false, err
	}
	return a.search(i, set)
}

func (a *allocation) search(i int, set RangeSet) (netip.Addr, bool, error) {
	for _, s := range spans(set, a.tx.Cursor(i)) {
		addr, ok, err := a.searchSpan(i, s)
		if ok || err != nil {
			return addr, ok, err
		}
	}
	return netip.Addr{}, false, nil
}

func (a *allocation) searchSpan(i int, s span) (netip.Addr, bool, error) {
	for {
		addr, ok, err := a.tx.Free(s.first, s.last)
		if !ok || err != nil {
			return addr, false, err
		}
		if addr != s.gateway {
			if ok, err = a.claim(i, addr); ok || err != nil {
				return addr, ok, err
			}
		}
		if addr == s.last {
			return addr, false, nil
		}
		s.first = addr.Next()
	}
}

func (a *allocation) claim(i int, addr netip.Addr) (bool, error) {
	if a.Dry {
		return true, nil
	}
	ok, err := a.tx.Claim(a.Owner, addr)
	if !ok || err != nil {
		return false, err
	}
	a.taken = append(a.taken, Reservation{Addr: addr, Owner: a.Owner})
	return true, a.tx.SetCursor(i, addr)
}

func (a *allocation) release(r Reservation) error {
	if a.Dry {
		return nil
	}
	return a.tx.Release(r)
}

func (a *allocation) renew(r Reservation) error {
	if a.Dry {
		return nil
	}
	return a.tx.Renew(r)
}

// span is a run of addresses to search, without its gateway.
type span struct{ first, last, gateway netip.Addr }

// spans lists the addresses of a set in the order of the search: from the address after
// cursor to the end of its range, the other ranges, and the rest of the first. A cursor
// outside the set (its index moved) starts at the beginning.
func spans(set RangeSet, cursor netip.Addr) []span {
	at := set.Find(cursor)
	if at < 0 {
		at, cursor = 0, netip.Addr{}
	}
	var out []span
	cur := set[at]
	if cursor.IsValid() && cursor != cur.End {
		out = append(out, span{cursor.Next(), cur.End, cur.Gateway})
	}
	for i := 1; i < len(set); i++ {
		r := set[(at+i)%len(set)]
		out = append(out, span{r.Start, r.End, r.Gateway})
	}
	rest := span{cur.Start, cur.End, cur.Gateway}
	if !cursor.IsValid() {
		return append([]span{rest}, out...)
	}
	rest.last = cursor
	return append(out, rest)
}

// Release releases those addresses of an owner that match accepts, in any range; nil accepts
// all. To hold none is no error. It goes on after an error and returns what it released.
func Release(tx *Tx, o Holder, match func(Reservation) bool) ([]Reservation, error) {
	held, err := tx.Held(o)
	if match != nil {
		held = slices.DeleteFunc(held, func(r Reservation) bool { return !match(r) })
	}
	return releaseAll(tx, held, err)
}

func releaseAll(tx *Tx, all []Reservation, err error) ([]Reservation, error) {
	var done []Reservation
	for _, r := range all {
		if e := tx.Release(r); e != nil {
			err = errors.Join(err, fmt.Errorf("release %s: %w", r.Addr, e))
			continue
		}
		done = append(done, r)
	}
	return done, err
}

// Stale sweeps, and lists the owners for which keep returns false (GC). A file that names no
// owner is no reservation of a container: operators block addresses that way. keep gets an
// empty IfName for files without one.
func Stale(tx *Tx, keep func(Holder) bool) (map[Holder]bool, error) {
	if err := tx.Sweep(); err != nil {
		return nil, err
	}
	all, err := tx.List(false)
	owners := map[Holder]bool{}
	for _, r := range all {
		if r.Owner.ID != "" && !keep(r.Owner) {
			owners[r.Owner] = true
		}
	}
	return owners, err
}

// Status reports whether an ADD would get an address from every set, including addresses that
// it would reclaim. It costs as much as the ADD's search and takes nothing. The error wraps
// ErrExhausted.
func Status(tx *Tx, sets []RangeSet, gone func(Reservation) bool) error {
	a := &allocation{tx: tx, Request: &Request{Sets: sets, Gone: gone, Dry: true}}
	for i, set := range sets {
		if _, err := a.next(i, set); err != nil {
			return fmt.Errorf("range %d: %w", i, err)
		}
	}
	return nil
}
