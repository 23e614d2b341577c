// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"cmp"
	"errors"
	"io/fs"
	"net/netip"
	"strconv"
	"strings"
)

const separator = "\r\n"

// content returns the text of an address file for this owner.
func (o Holder) content() string { return o.ID + separator + o.IfName }

// ownerOf reads the owner from the text of an address file. It accepts the line ends that scripts
// write. If the file names no owner, ownerOf returns the zero Holder.
func ownerOf(content string) Holder {
	id, ifName, _ := strings.Cut(strings.TrimSpace(content), "\n")
	o := Holder{strings.TrimSpace(id), ifName}
	check := o
	if check.IfName == "" {
		check.IfName = "eth0"
	}
	if check.Validate() != nil {
		return Holder{}
	}
	return o
}

// Tx is a transaction on a FileStore. It holds the lock, and an index that matches the directory.
// Each method is atomic: if the process dies between two calls, the store stays valid. If the
// directory does not exist, dir is nil.
type Tx struct {
	store  *FileStore
	mode   Mode
	dir    *dir
	lockFD int

	index   *index
	indexFD int  // -1 if the index is only in memory
	noFile  bool // there is no index file, and keep writes none for so few reservations
	changed bool // this transaction changed the directory
	suspect bool // the index was wrong, or the next transaction must not trust it

	// owners is what the last scan of this transaction found. Before the first scan it is nil.
	owners map[netip.Addr]Holder
	torn   []string
}

// Close records the current state of the directory in the index, then unlocks.
func (t *Tx) Close() {
	defer t.release()
	t.commitIndex()
}

func (t *Tx) release() {
	if t.indexFD >= 0 {
		closeFD(t.indexFD)
	}
	if t.lockFD >= 0 {
		closeFD(t.lockFD)
	}
	if t.dir != nil {
		t.dir.close()
	}
}

func (t *Tx) reservation(e entry, o Holder) Reservation {
	return Reservation{Addr: e.addr, Holder: o, EarlierBoot: t.store.Boot.before(e.boot, e.time()), Since: e.time()}
}

// Held returns the addresses of an owner, in any order. Held first looks for files with the
// owner's id and interface name. If there are none, it looks for files of a host-local before
// 0.7, which hold only the container id.
func (t *Tx) Held(o Holder) ([]Reservation, error) {
	held, err := t.reservedBy(o.content(), o)
	if err == nil && len(held) == 0 {
		held, err = t.reservedBy(o.ID, Holder{ID: o.ID})
	}
	return held, err
}

func (t *Tx) reservedBy(content string, o Holder) ([]Reservation, error) {
	k := keyOf(content)
	found, err := t.index.find(k)
	if err == nil {
		var held []Reservation
		if held, err = t.verified(found, o); err == nil {
			return held, nil
		}
	}
	// The index is wrong, so the files decide.
	if err := t.rebuildIndex(); err != nil {
		return nil, err
	}
	if found, err = t.index.find(k); err != nil {
		return nil, err
	}
	return t.verified(found, o)
}

// verified checks each index entry against its file.
func (t *Tx) verified(found []entry, o Holder) ([]Reservation, error) {
	var held []Reservation
	for _, e := range found {
		f, err := t.dir.read(e.addr.String())
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if err != nil || entryOf(e.addr, f).key != e.key {
			return nil, errCorrupt
		}
		held = append(held, t.reservation(e, o))
	}
	return held, nil
}

// entryOf returns the index entry for a file. If f is not a regular file, the entry has no owner.
func entryOf(a netip.Addr, f file) entry {
	if !f.plain {
		return entry{key: keyOf("\x00" + a.String()), addr: a}
	}
	return entry{key: keyOf(strings.TrimSpace(string(f.data))), addr: a, boot: f.boot, since: f.since.UnixNano()}
}

// Holder returns the reservation of an address. ok is false if the address has no owner.
func (t *Tx) Holder(a netip.Addr) (r Reservation, ok bool, err error) {
	if t.dir == nil {
		return Reservation{}, false, nil
	}
	f, err := t.dir.read(a.String())
	if errors.Is(err, fs.ErrNotExist) || err == nil && f.torn() {
		return Reservation{}, false, nil
	}
	if err != nil {
		return Reservation{}, false, err
	}
	return t.reservation(t.withIndexed(entryOf(a, f)), ownerOf(string(f.data))), true, nil
}

// withIndexed adds to e the fields that only the index stores. If the file names a boot, that boot counts.
func (t *Tx) withIndexed(e entry) entry {
	same, err := t.index.find(e.key)
	for _, o := range same {
		if err == nil && o.addr == e.addr && o.since == e.since {
			o.boot = cmp.Or(e.boot, o.boot)
			return o
		}
	}
	return e
}

// Free returns the first address from first to last, both included, that the index shows as free.
// Another process may have taken it; only Reserve decides.
func (t *Tx) Free(first, last netip.Addr) (netip.Addr, bool, error) {
	a, ok, err := t.index.free(first, last)
	if err == nil {
		return a, ok, nil
	}
	if err := t.rebuildIndex(); err != nil {
		return a, false, err
	}
	return t.index.free(first, last)
}

// Reserve reserves an address by linking a complete file into the directory. If another owner has
// the address, Reserve returns false, and Free no longer offers the address. A file that a crash
// cut short counts as free.
func (t *Tx) Reserve(o Holder, a netip.Addr) (bool, error) {
	if err := o.Validate(); err != nil {
		return false, err
	}
	t.beginChange()
	name, content := a.String(), o.content()
	since, err := t.dir.link(name, []byte(content), t.store.Boot.ID)
	if errors.Is(err, fs.ErrExist) {
		if free, err := t.vacate(a); !free {
			return false, err
		}
		since, err = t.dir.link(name, []byte(content), t.store.Boot.ID)
	}
	if err != nil {
		t.suspect = true // the file may exist in spite of the error
		return false, err
	}
	t.insert(entry{keyOf(content), a, t.store.Boot.mark(), since})
	return true, nil
}

// vacate frees an address if a crash left its file incomplete. Otherwise the address has an owner, although the
// index shows it as free or the caller requested it. A file that cannot be read may be an owner's.
func (t *Tx) vacate(a netip.Addr) (free bool, err error) {
	f, err := t.dir.read(a.String())
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil // its owner has just released it
	}
	if err == nil && f.torn() {
		err = t.removeTorn(a.String())
		return err == nil, err
	}
	t.suspect = true
	if err == nil {
		t.insert(entryOf(a, f))
	}
	return false, err
}

// removeTorn frees an address whose file a crash left incomplete.
func (t *Tx) removeTorn(name string) error {
	t.store.warn(t.dir.pathError("reuse", name, errTorn))
	return t.dir.unlink(name)
}

// Sweep scans the directory and removes the incomplete files of crashed processes. Every scan
// also removes the temporary files of link.
func (t *Tx) Sweep() error {
	if t.dir == nil {
		return nil
	}
	if err := t.rebuildIndex(); err != nil {
		return err
	}
	for _, name := range t.torn {
		t.beginChange()
		if err := t.removeTorn(name); err != nil {
			return err
		}
	}
	return nil
}

// Renew marks a reservation as made now, in this boot: it updates the file and the index.
func (t *Tx) Renew(r Reservation) error {
	name := r.Addr.String()
	if err := t.dir.touch(name, t.store.Boot.ID); err != nil {
		return err
	}
	f, err := t.dir.read(name)
	if err != nil {
		return err
	}
	t.beginChange()
	e := entryOf(r.Addr, f)
	e.boot = t.store.Boot.mark()
	t.insert(e)
	return nil
}

// Release frees an address if r.Holder still holds the address.
func (t *Tx) Release(r Reservation) error {
	if t.dir == nil {
		return nil
	}
	name := r.Addr.String()
	f, err := t.dir.read(name)
	if errors.Is(err, fs.ErrNotExist) {
		t.suspect = true
		return nil
	}
	if err != nil {
		return err
	}
	if ownerOf(string(f.data)) != r.Holder {
		t.suspect = true
		return nil
	}
	t.beginChange()
	if err := t.dir.unlink(name); err != nil {
		return err
	}
	if err := t.index.remove(entryOf(r.Addr, f).key, r.Addr); err != nil {
		t.suspect = true
	}
	return nil
}

// Cursor returns the address that was last given out from a set, or the zero address. Cursor
// reads the address from last_reserved_ip.N, which the reference writes too. A crash may leave a
// file without an address; then the search starts at the beginning of the set.
func (t *Tx) Cursor(set int) netip.Addr {
	if t.dir == nil {
		return netip.Addr{}
	}
	f, err := t.dir.read(cursorName(set))
	if err != nil {
		return netip.Addr{}
	}
	a, _ := ParseAddr(string(f.data))
	return a
}

// SetCursor stores the address that was last given out from a set.
func (t *Tx) SetCursor(set int, a netip.Addr) error {
	return t.dir.overwrite(cursorName(set), []byte(a.String()))
}

func cursorName(set int) string { return cursorPrefix + strconv.Itoa(set) }

// Outlived returns the reservations whose files name an earlier boot. After a reboot there may be many,
// otherwise none, so the index says whether a scan found some. After one call, Outlived returns none until the
// next scan.
func (t *Tx) Outlived() ([]Reservation, error) {
	if t.index.head.earlier == 0 {
		return nil, nil
	}
	list, err := t.list(func(e *entry) bool { return t.outlived(*e) })
	if err == nil {
		t.beginChange()
		t.index.head.earlier = 0
	}
	return list, err
}

// outlived reports whether the file or an earlier index names an earlier boot for a reservation.
func (t *Tx) outlived(e entry) bool { return e.boot != 0 && t.store.Boot.before(e.boot, e.time()) }

// List returns the reservations. If earlierBoot is set, it returns only those of an earlier boot.
func (t *Tx) List(earlierBoot bool) ([]Reservation, error) {
	var want func(*entry) bool
	if earlierBoot {
		want = func(e *entry) bool { return t.store.Boot.before(e.boot, e.time()) }
	}
	return t.list(want)
}

// list returns the reservations that want selects, or all if want is nil.
func (t *Tx) list(want func(*entry) bool) ([]Reservation, error) {
	entries, err := t.index.all(want)
	if err != nil {
		return nil, err
	}
	var out []Reservation
	for _, e := range entries {
		o, err := t.owner(e.addr)
		if err != nil {
			continue // deleted by a program without the lock; a later scan notices
		}
		out = append(out, t.reservation(e, o))
	}
	return out, nil
}

func (t *Tx) owner(a netip.Addr) (Holder, error) {
	if o, ok := t.owners[a]; ok {
		return o, nil
	}
	f, err := t.dir.read(a.String())
	return ownerOf(string(f.data)), err
}

// Refresh scans the directory, to correct an index that may be wrong. If the index comes from
// scans alone, Refresh does not scan and returns false. Callers use Refresh before they report a
// pool as full.
func (t *Tx) Refresh() (bool, error) {
	if t.dir == nil || t.index.head.exact == 1 && !t.changed && !t.suspect {
		return false, nil
	}
	return true, t.rebuildIndex()
}
