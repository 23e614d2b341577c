// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package ipam gives out addresses. The package has the address ranges, the allocator, and the
// store. The store keeps reservations on disk in the layout of the reference's host-local.
//
// Range and RangeSet follow the reference's rules and use its error texts. Allocate, Release,
// Stale and Status work on a Tx, a transaction on a FileStore, and never touch a file
// themselves.
//
// # On disk
//
// The directory <dataDir>/<network>/ holds one file for each reserved address. The file's name
// is the address; its whole content is "<container id>\r\n<ifname>". The file
// last_reserved_ip.N holds the cursor of set N, which is the address given out last. The empty
// file lock is for flock(2). These files are the truth. The reference's host-local can take
// over from ours at any moment, and ours from the reference's.
//
// # The index
//
// FileStore keeps an index outside that directory. With the index, ADD, DEL and a lookup cost
// the same for 0 and for 60,000 reservations. The index is a cache. If it is missing, damaged,
// out of date or of another schema, FileStore builds it again from the files. If it cannot be
// written, FileStore keeps it in memory during the call.
//
// The index records the directory's device, inode, mtime and ctime. If any of them differs now,
// the index is out of date. Before Linux 6.13 the kernel's clock for mtime moves in ticks of 1
// to 4 ms. If another program changed the directory in the same tick as we did, the mtime would
// not show its change. So after each of our changes, and before each scan, we set the
// directory's mtime ten seconds into the past. Any later change sets mtime to the present,
// which never equals the recorded value. This works within a tick, and on file systems that
// store whole seconds.
//
// In one case we miss a change at first: a program changes the directory without the lock, in
// the 100 µs between our check and our new mtime. An operator's rm or cp does that; the
// reference takes the lock. If a file was removed, the owner's DEL notices it. A full pool
// notices it too, because we report a pool as full only after an undisturbed scan. If a file
// was added, Claim notices it, because its link(2) fails. The next scan notices it too (GC, a
// full pool, or any change by another program). No address is ever given out twice.
//
// After a crash the index is marked dirty, and the next call builds it again.
package ipam
