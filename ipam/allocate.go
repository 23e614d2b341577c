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

// ErrExhausted means that a range set has no free address, and no address whose attachment is
// gone. Allocate and Status wrap it.
var ErrExhausted = errors.New("no IP addresses available in range set")

// Request asks for one address from each range set.
type Request struct {
	Holder    Holder
	Sets      []RangeSet   // canonical
	Requested []netip.Addr // addresses that the caller asks for; Allocate gives all of them or fails

	// Gone reports whether the attachment of a reservation provably no longer exists. If Gone is
	// nil, every attachment counts as existing. Allocate calls Gone in three cases:
	//   - A file names an earlier boot. If the attachment is gone, Allocate releases the address.
	//   - A reservation seems to be of an earlier boot and is in the way: the set is full, or the
	//     caller requested that address. If the attachment is gone, Allocate takes the address.
	//   - The owner of this ADD already has an address. If its attachment is gone, the owner gets
	//     the same address again (nerdctl#3355); otherwise the ADD fails with "duplicate allocation
	//     is not allowed".
	Gone func(Reservation) bool

	// Dry makes Allocate find addresses without reserving them.
	Dry bool
}

// Grant is an address with its prefix length and the gateway of its range.
type Grant struct {
	Address netip.Prefix
	Gateway netip.Addr
}

// Allocate takes one address from each set, in the order of the sets. In each set it starts the
// search after the address that was given out last. If Allocate fails, it releases the addresses
// that it took.
func Allocate(tx *Tx, req *Request) ([]Grant, error) {
	a := &allocation{tx: tx, Request: req, wanted: unique(req.Requested)}
	leases, err := a.all()
	if err == nil {
		return leases, nil
	}
	for _, r := range a.reserved {
		err = errors.Join(err, tx.Release(r))
	}
	return nil, err
}

type allocation struct {
	*Request
	tx       *Tx
	wanted   []netip.Addr // requested addresses that are not allocated yet
	reserved []Reservation
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
	if err := a.tx.permit(a.Sets); err != nil {
		return nil, err
	}
	if err := a.releaseOutlived(); err != nil {
		return nil, err
	}
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
		return nil, fmt.Errorf("%s:%s", NoRange, list(a.wanted))
	}
	return leases, nil
}

// NoRange begins the message of the error for a requested address that is in no range, as the reference's host-local writes
// it. The error of a plugin that was executed has nothing but its message.
const NoRange = "failed to allocate all requested IPs"

func list(addrs []netip.Addr) string {
	var b strings.Builder
	for _, a := range addrs {
		b.WriteString(" " + a.String())
	}
	return b.String()
}

func (a *allocation) one(i int, set RangeSet) (netip.Addr, error) {
	if want, ok := a.popWanted(set); ok {
		return a.requested(i, set, want)
	}
	held, ok, err := a.repeated(set)
	if ok || err != nil {
		return held, err
	}
	return a.next(i, set)
}

// popWanted returns the first requested address that is in set, and removes it from the list.
func (a *allocation) popWanted(set RangeSet) (netip.Addr, bool) {
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
	holder, reserved, err := a.tx.Holder(want)
	if err != nil {
		return want, err
	}
	if reserved && holder.Holder == a.Holder && a.isDead(holder) {
		return want, a.renew(holder)
	}
	if reserved && holder.EarlierBoot && a.isDead(holder) {
		reserved = false
		if err := a.release(holder); err != nil {
			return want, err
		}
	}
	if !reserved {
		reserved, err = a.claim(i, want)
		reserved = !reserved
	}
	if err == nil && reserved {
		err = fmt.Errorf("requested IP address %s is not available in range set %s", want, set)
	}
	return want, err
}

// repeated handles an ADD whose owner already has an address of this set.
func (a *allocation) repeated(set RangeSet) (held netip.Addr, ok bool, err error) {
	all, err := a.tx.Held(a.Holder)
	if err != nil {
		return held, false, err
	}
	for _, r := range all {
		if !set.Contains(r.Addr) {
			continue
		}
		if !a.isDead(r) {
			return held, false, fmt.Errorf("%s has been allocated to %s, duplicate allocation is not allowed", r.Addr, a.Holder.ID)
		}
		return r.Addr, true, a.renew(r)
	}
	return held, false, nil
}

func (a *allocation) isDead(r Reservation) bool { return a.Gone != nil && a.Gone(r) }

// next takes the next free address. It first trusts the index, then scans the directory, and at
// last takes back reservations of an earlier boot.
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

// releaseOutlived releases the reservations of earlier boots, also those outside of the sets, which
// may have changed. No runtime calls DEL for a container that it was about to start when the node
// crashed. The request's own reservation stays, and repeated renews it.
func (a *allocation) releaseOutlived() error {
	if a.Dry {
		return nil
	}
	list, err := a.tx.Outlived()
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(r Reservation) bool { return r.Holder == a.Holder || a.gateway(r.Addr) || !a.isDead(r) })
	_, err = releaseAll(a.tx, list, nil)
	return err
}

func (a *allocation) gateway(addr netip.Addr) bool {
	return slices.ContainsFunc(a.Sets, func(set RangeSet) bool {
		at := set.Find(addr)
		return at >= 0 && set[at].Gateway == addr
	})
}

func (a *allocation) reclaim(i int, set RangeSet) (netip.Addr, bool, error) {
	all, err := a.tx.List(true)
	if err != nil {
		return netip.Addr{}, false, err
	}
	var dead []Reservation
	for _, r := range all {
		if at := set.Find(r.Addr); at >= 0 && set[at].Gateway != r.Addr && a.isDead(r) {
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
	ok, err := a.tx.Reserve(a.Holder, addr)
	if !ok || err != nil {
		return false, err
	}
	a.reserved = append(a.reserved, Reservation{Addr: addr, Holder: a.Holder})
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

// span is a run of addresses to search. The search skips the gateway.
type span struct{ first, last, gateway netip.Addr }

// spans lists the addresses of a set in the order of the search. The search starts after cursor and
// goes to the end of cursor's range. Then it goes through the other ranges, and ends with the part
// of the first range up to cursor. A cursor can be outside the set if the sets changed their order
// in the configuration; then the search starts at the beginning.
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

// Release releases the addresses of an owner that match accepts, in any range. If match is nil,
// it releases all of them. An owner without an address is no error. Release continues after an
// error. It returns the reservations that it released.
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

// Stale scans the store and returns the owners for which keep returns false. GC uses it.
// Operators block addresses with files that name no owner; Stale ignores those files. For a file
// without an interface name, keep gets an empty IfName.
func Stale(tx *Tx, keep func(Holder) bool) (map[Holder]bool, error) {
	if err := tx.Sweep(); err != nil {
		return nil, err
	}
	all, err := tx.List(false)
	owners := map[Holder]bool{}
	for _, r := range all {
		if r.Holder.ID != "" && !keep(r.Holder) {
			owners[r.Holder] = true
		}
	}
	return owners, err
}

// Status reports whether an ADD would get an address from every set. An address that the ADD
// would take back counts as free. Status costs as much as the search of the ADD, but reserves
// nothing. Its error wraps ErrExhausted or ErrNotGranted.
func Status(tx *Tx, sets []RangeSet, gone func(Reservation) bool) error {
	if err := tx.permit(sets); err != nil {
		return err
	}
	a := &allocation{tx: tx, Request: &Request{Sets: sets, Gone: gone, Dry: true}}
	for i, set := range sets {
		if _, err := a.next(i, set); err != nil {
			return fmt.Errorf("range %d: %w", i, err)
		}
	}
	return nil
}
