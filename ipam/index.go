// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/patchbay-net/patchbay/internal/order"
)

// The index is one file with a header, a table of chunks (bitmap.go) and a table of entries. Both
// tables are hash tables with open addressing; their size is a power of two. Numbers are little
// endian. indexMagic names the schema. FileStore builds an index with another schema again.
//
//	header  magic, 13 numbers of 8 bytes (the last a checksum), padding to 128 bytes
//	chunk   base[16] used[8] bitmap[128] padding[8]
//	entry   key[16] addr[16] boot[8] since[8] used[8] padding[8]
const (
	indexMagic = "pbipam02"
	headerSize = 128
	chunkSize  = 160
	entrySize  = 64
	minSlots   = 64
)

var (
	errCorrupt = errors.New("index is damaged")
	errNoRoom  = errors.New("index has no room") // make a larger index
)

// key is the hash of an address file's content without surrounding white space, because the
// reference also ignores white space there.
type key [16]byte

func keyOf(content string) key {
	sum := sha256.Sum256([]byte(content))
	return key(sum[:16])
}

// entry is one taken address.
type entry struct {
	key   key
	addr  netip.Addr
	boot  uint64 // Boot.mark of the boot that made the reservation; 0 if a scan found it
	since int64  // mtime of the file, ns
}

func (e *entry) time() time.Time { return time.Unix(0, e.since) }

// header describes the index and the state of the directory that it matches.
type header struct {
	clean   uint64 // 1; 0 while a change is unfinished, or after a change that failed
	exact   uint64 // 1 if only scans built the index, and no transaction added to it (see Tx.Refresh)
	dir     version
	boot    uint64 // Boot.mark of the boot that wrote the index; the index of an earlier boot is not trusted
	entries uint64 // entries in use
	chunks  uint64 // chunks in use
	eslots  uint64 // slots for entries
	cslots  uint64 // slots for chunks
	earlier uint64 // 1 if a scan found reservations of an earlier boot, and no ADD has looked at them since
}

func (h *header) fields() [12]*uint64 {
	return [...]*uint64{&h.clean, &h.exact, &h.dir.dev, &h.dir.ino, &h.dir.mtime, &h.dir.ctime,
		&h.boot, &h.entries, &h.chunks, &h.eslots, &h.cslots, &h.earlier}
}

func (h *header) encode() []byte {
	b := append(make([]byte, 0, headerSize), indexMagic...)
	for _, f := range h.fields() {
		b = binary.LittleEndian.AppendUint64(b, *f)
	}
	return binary.LittleEndian.AppendUint64(b, checksum(b))
}

func (h *header) decode(b []byte) error {
	fields := h.fields()
	end := len(indexMagic) + 8*len(fields)
	if len(b) < end+8 || string(b[:len(indexMagic)]) != indexMagic ||
		binary.LittleEndian.Uint64(b[end:]) != checksum(b[:end]) {
		return errCorrupt
	}
	for i, f := range fields {
		*f = binary.LittleEndian.Uint64(b[len(indexMagic)+8*i:])
	}
	return nil
}

// size is the length of the whole index in bytes.
func (h *header) size() int64 {
	return headerSize + int64(h.cslots)*chunkSize + int64(h.eslots)*entrySize
}

func (h *header) check(size int64) error {
	const most = 1 << 32
	for _, n := range []uint64{h.eslots, h.cslots} {
		if n == 0 || n > most || n&(n-1) != 0 {
			return errCorrupt
		}
	}
	if h.size() != size || h.entries > h.eslots || h.chunks > h.cslots {
		return errCorrupt
	}
	return nil
}

// checksum returns the FNV-1a hash of b.
func checksum(b []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range b {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}

// pages stores an index, in a file or in memory.
type pages interface {
	io.ReaderAt
	io.WriterAt
}

type memory []byte

func (m memory) ReadAt(p []byte, off int64) (int, error) { return copy(p, m[off:]), nil }

func (m memory) WriteAt(p []byte, off int64) (int, error) { return copy(m[off:], p), nil }

// index tells which addresses an owner holds and which addresses are free. A query costs the same
// few reads and writes, however many addresses there are.
type index struct {
	pages pages
	head  header
}

func readIndex(p pages, size int64) (*index, error) {
	b := make([]byte, headerSize)
	if _, err := p.ReadAt(b, 0); err != nil {
		return nil, errCorrupt
	}
	x := &index{pages: p}
	if err := x.head.decode(b); err != nil {
		return nil, err
	}
	return x, x.head.check(size)
}

// buildIndex makes an index in memory, with room for 50% more entries.
func buildIndex(entries []entry) *index {
	bases := map[number]bool{}
	for i := range entries {
		bases[numberOf(entries[i].addr).base()] = true
	}
	x := &index{head: header{eslots: slotsFor(len(entries)), cslots: slotsFor(len(bases))}}
	x.pages = make(memory, x.head.size())
	for _, e := range entries {
		if err := x.insert(e); err != nil {
			panic(err) // cannot fail: memory does not fail, and there is room
		}
	}
	return x
}

// slotsFor returns a power of two that is at least twice n. A table grows when three quarters
// of its slots are in use.
func slotsFor(n int) uint64 {
	slots := uint64(minSlots)
	for slots < 2*uint64(n) {
		slots *= 2
	}
	return slots
}

func (x *index) writeHeader() error {
	_, err := x.pages.WriteAt(x.head.encode(), 0)
	return err
}

func (x *index) entryOffset(i uint64) int64 {
	return headerSize + int64(x.head.cslots)*chunkSize + int64(i)*entrySize
}

func (x *index) entry(i uint64) (e entry, used bool, err error) {
	var b [entrySize]byte
	if _, err = x.pages.ReadAt(b[:], x.entryOffset(i)); err != nil {
		return e, false, err
	}
	e, used = decodeEntry(b[:])
	return e, used, nil
}

func decodeEntry(b []byte) (entry, bool) {
	e := entry{
		key:   key(b[:16]),
		addr:  netip.AddrFrom16([16]byte(b[16:32])).Unmap(),
		boot:  binary.LittleEndian.Uint64(b[32:]),
		since: int64(binary.LittleEndian.Uint64(b[40:])),
	}
	return e, binary.LittleEndian.Uint64(b[48:]) == 1
}

func (x *index) putEntry(i uint64, e entry, used bool) error {
	var b [entrySize]byte
	if used {
		addr := e.addr.As16()
		copy(b[:16], e.key[:])
		copy(b[16:32], addr[:])
		binary.LittleEndian.PutUint64(b[32:], e.boot)
		binary.LittleEndian.PutUint64(b[40:], uint64(e.since))
		b[48] = 1
	}
	_, err := x.pages.WriteAt(b[:], x.entryOffset(i))
	return err
}

func (x *index) home(k key) uint64 { return binary.LittleEndian.Uint64(k[:]) & (x.head.eslots - 1) }

// probe calls fn for one slot after another, from the home slot of k to the first unused slot. fn
// also gets the unused slot. If fn returns stop, probe ends early.
func (x *index) probe(k key, fn func(i uint64, e entry, used bool) (stop bool)) error {
	for n, i := uint64(0), x.home(k); n < x.head.eslots; n, i = n+1, (i+1)&(x.head.eslots-1) {
		e, used, err := x.entry(i)
		if err != nil {
			return err
		}
		if fn(i, e, used) || !used {
			return nil
		}
	}
	return errCorrupt
}

// find returns the entries with the key k.
func (x *index) find(k key) (found []entry, err error) {
	err = x.probe(k, func(_ uint64, e entry, used bool) bool {
		if used && e.key == k {
			found = append(found, e)
		}
		return false
	})
	return found, err
}

// insert adds e. If there is an entry with the same key and address, insert replaces it.
func (x *index) insert(e entry) error {
	if 4*x.head.entries >= 3*x.head.eslots || 4*x.head.chunks >= 3*x.head.cslots {
		return errNoRoom
	}
	at, had := uint64(0), false
	err := x.probe(e.key, func(i uint64, o entry, used bool) bool {
		at, had = i, used
		return used && o.key == e.key && o.addr == e.addr
	})
	if err != nil {
		return err
	}
	if !had {
		x.head.entries++
	}
	return errors.Join(x.putEntry(at, e, true), x.mark(e.addr, true))
}

// remove deletes the entry with this key and address, and moves later entries into the gap. So
// the hash table needs no marks for deleted entries.
func (x *index) remove(k key, a netip.Addr) error {
	gap, found := uint64(0), false
	err := x.probe(k, func(i uint64, e entry, used bool) bool {
		gap, found = i, used && e.key == k && e.addr == a
		return found
	})
	if err != nil || !found {
		return err
	}
	x.head.entries--
	if err := x.closeGap(gap); err != nil {
		return err
	}
	return x.mark(a, false)
}

func (x *index) closeGap(gap uint64) error {
	mask := x.head.eslots - 1
	for n, i := uint64(0), (gap+1)&mask; n < x.head.eslots; n, i = n+1, (i+1)&mask {
		e, used, err := x.entry(i)
		if err != nil {
			return err
		}
		if !used {
			return x.putEntry(gap, entry{}, false)
		}
		// Move the entry into the gap, unless its home slot lies after the gap.
		if (i-x.home(e.key))&mask >= (i-gap)&mask {
			if err := x.putEntry(gap, e, true); err != nil {
				return err
			}
			gap = i
		}
	}
	return errCorrupt
}

// all returns the entries for which want returns true, sorted by address. If want is nil, all
// returns every entry.
func (x *index) all(want func(*entry) bool) ([]entry, error) {
	b := make([]byte, x.head.eslots*entrySize)
	if _, err := x.pages.ReadAt(b, x.entryOffset(0)); err != nil {
		return nil, err
	}
	var out []entry
	for ; len(b) > 0; b = b[entrySize:] {
		if e, used := decodeEntry(b); used && (want == nil || want(&e)) {
			out = append(out, e)
		}
	}
	order.By(out, func(a, b entry) int { return a.addr.Compare(b.addr) })
	return out, nil
}

// chunk is one slot of the chunk table.
type chunk struct {
	at   uint64
	used bool
	buf  [chunkSize]byte
}

func (c *chunk) bits() bitmap { return c.buf[24 : 24+bitmapSize] }

func (x *index) chunk(base number) (*chunk, error) {
	want := base.addr().As16()
	mask := x.head.cslots - 1
	c := &chunk{}
	for n, i := uint64(0), base.hash()&mask; n < x.head.cslots; n, i = n+1, (i+1)&mask {
		if _, err := x.pages.ReadAt(c.buf[:], headerSize+int64(i)*chunkSize); err != nil {
			return nil, err
		}
		c.at, c.used = i, c.buf[16] == 1
		if !c.used || [16]byte(c.buf[:16]) == want {
			return c, nil
		}
	}
	return nil, errCorrupt
}

// mark sets or clears the bit of an address.
func (x *index) mark(a netip.Addr, reserved bool) error {
	n := numberOf(a)
	c, err := x.chunk(n.base())
	if err != nil {
		return err
	}
	if !c.used {
		base := n.base().addr().As16()
		c.buf = [chunkSize]byte{16: 1}
		copy(c.buf[:], base[:])
		x.head.chunks++
	}
	c.bits().set(n.offset(), reserved)
	_, err = x.pages.WriteAt(c.buf[:], headerSize+int64(c.at)*chunkSize)
	return err
}

// free returns the first address from first to last, both included, whose bit is clear.
func (x *index) free(first, last netip.Addr) (netip.Addr, bool, error) {
	from, to := numberOf(first), numberOf(last)
	if last.Less(first) {
		return first, false, fmt.Errorf("no addresses from %s to %s", first, last)
	}
	for base := from.base(); ; base = base.next() {
		c, err := x.chunk(base)
		if err != nil {
			return first, false, err
		}
		lo, hi := 0, chunkAddrs-1
		if base == from.base() {
			lo = from.offset()
		}
		if base == to.base() {
			hi = to.offset()
		}
		if !c.used {
			return number{base.hi, base.lo | uint64(lo)}.addr(), true, nil
		}
		if i := c.bits().firstClear(lo, hi); i >= 0 {
			return number{base.hi, base.lo | uint64(i)}.addr(), true, nil
		}
		if base == to.base() {
			return first, false, nil
		}
	}
}
