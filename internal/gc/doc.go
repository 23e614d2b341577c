// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package gc finds what dead attachments left on a node and removes it: `patchbay
// gc` without a network.
//
// Everything that names an attachment is evidence of it: records, cached results
// of every runtime, address files, links, firewall elements, rules of the
// reference plugins. Evidence is put together by attachment and judged (judge),
// a pure function; who is dead beyond doubt is removed (remove), and everything
// else is told with the reason why it stays.
//
// # What keeps an ADD that is under way safe
//
// gc claims an attachment and then looks for its records; an ADD of ours writes
// its record first of all and then looks for a claim (record.Seize). So one sees
// the other: gc leaves the attachment alone, or the ADD waits until gc is done.
// Records are locked as long as an ADD or DEL works, and gc leaves what is
// locked. An ADD of the reference plugins has no record; its namespace exists,
// its files are younger than the grace period, and links are deleted by index,
// so a new link under an old name is another one. Two gcs take turns.
package gc
