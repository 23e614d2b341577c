// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package gc finds what dead attachments left on a node and removes it: `patchbay gc`
// without a network.
//
// Everything that names an attachment is evidence of it: records, cached results of every
// runtime, address files, links, firewall elements, rules of the reference plugins. gc
// joins the evidence by attachment and judges it (judge), a pure function; attachments
// that are certain to be dead are removed (remove), and the report gives the reason why gc
// keeps any other.
//
// # What protects an ADD in progress
//
// gc claims an attachment and then looks for its records; our ADD writes its record first
// of all and then looks for a claim (record.Seize). So one sees the other: gc keeps the
// attachment, or the ADD waits until gc is done. An ADD or DEL holds the locks of its
// records while it works, and gc skips locked records. An ADD of the reference plugins has
// no record; its namespace exists, its files are younger than the grace period, and gc
// deletes links by index, so that it cannot delete a new link under an old name. Two gcs
// take turns.
package gc
