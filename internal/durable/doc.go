// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package durable is the one way to keep state in files: written whole or not at all,
// locked, in directories that no other user can change.
//
// A file's data goes into a file without a name, which is then linked to its path
// (O_TMPFILE, Linux 3.11), so a killed process leaves nothing beside it. There is no fsync
// (docs/adr/0005-no-fsync-on-add.md) but in WriteSynced and WriteDurable, for files that
// must survive a power loss.
//
// A wait for flock(2) ends with a context; the kernel's own wait cannot be interrupted,
// and would block a thread. A lock ends with the process that holds it, so a process that
// hangs or is stopped keeps it.
package durable
