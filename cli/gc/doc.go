// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package gc finds and removes what dead attachments left on a node. It implements `patchbay
// gc` without a network.
//
// gc collects everything that names an attachment: records, results that runtimes cached,
// address files, links, firewall elements, rules of the reference plugins. It groups these
// traces by attachment, and a pure function (judge) decides which attachments are dead. gc
// removes only those that are certainly dead (remove). For every other one that may be dead,
// the report says why gc keeps it.
//
// # What protects an ADD in progress
//
// gc claims an attachment and then looks for its records. Our ADD does the opposite: it writes
// its record first, and then looks for a claim (record.Seize). So at least one of them sees the
// other: either gc keeps the attachment, or the ADD waits for gc. An ADD or DEL locks its
// records while it works, and gc skips locked records.
//
// An ADD of the reference plugins has no record. gc keeps its attachment because its namespace
// exists and its files are younger than the grace period. gc deletes links by their index, so
// it cannot delete a new link that has an old name. A second gc waits for the first.
package gc
