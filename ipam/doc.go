// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package ipam gives out addresses: ranges, the allocator, and the store that
// keeps reservations on disk in the layout of the reference's host-local.
//
// Range and RangeSet are values with the reference's rules and texts. Allocate, Release, Stale
// and Status decide over a Tx and never touch a file; Tx is a transaction on a FileStore.
//
// # On disk
//
// <dataDir>/<network>/ holds one file for each address, named by its text, with "<container
// id>\r\n<ifname>" and nothing more; last_reserved_ip.N, the cursor of set N; and lock, an
// empty file for flock(2). These files are the truth. The reference's program can take over
// from ours at any moment, and ours from it.
//
// # The index
//
// FileStore keeps an index outside that directory, so that ADD, DEL and a lookup cost the
// same with 0 and with 60,000 reservations. It is a cache: an index that is missing, of
// another schema, damaged or out of date is built again from the files, and one that cannot
// be written is kept in memory for the call.
//
// The index is out of date when the directory's device, inode, mtime or ctime differ from
// what it recorded. The kernel's clock for mtime moves in ticks of 1 to 4 ms (before 6.13),
// so a foreign change within the tick of our own would not show. Hence after each change of
// ours, and before each scan, the directory's mtime is set ten seconds into the past, to
// the nanosecond. Any later change moves mtime to the present and cannot match the recorded
// value, in any tick, also on file systems that keep whole seconds.
//
// One case is left: a change by a program that does not take the lock (an operator's rm or
// cp; the reference takes it) in the 100 µs between our check and our stamp. The removal of
// a file is noticed by its owner's DEL, or when the pool seems full, because a pool is only
// called full after a scan that no change raced with. An added file is noticed when its
// address is tried, since the claim itself is a link(2) that fails, or by the next scan
// (GC, a full pool, any foreign change). No address is ever given out twice.
//
// A crash leaves the index marked dirty and the next call builds it again.
package ipam
