// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package durable writes and reads state files. A file is written completely or not at all,
// can be locked, and lies in a directory that no other user can change.
//
// The data is first written to a file without a name, which is then linked to its path
// (O_TMPFILE, Linux 3.11). So a killed process leaves no temporary file. Only WriteSynced and
// WriteDurable call fsync; they serve files that must survive a power loss
// (docs/adr/0005-no-fsync-on-add.md).
//
// Functions that wait for flock(2) stop waiting when their context ends. They do not use the
// kernel's own wait, because it cannot be interrupted and blocks a thread. A lock ends with
// the process that holds it. So a process that hangs or is stopped keeps its lock.
package durable
