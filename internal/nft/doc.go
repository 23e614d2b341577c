// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package nft is the firewall of Patchbay: one nftables table, `inet patchbay`
// (and `bridge patchbay` once macspoofchk is used), over netlink, without nft
// or iptables. testdata/table.golden shows it as nft lists it.
//
// The shape of the API:
//
//	fw := nft.Open(runDir)               // dials at first use, in the host's namespace
//	fw.Add(nft.Masqueraded(addr, comment)...) // queues; constructors are pure
//	fw.Add(nft.Port(p, cond, comment))   // *TakenError of Commit when another owner has the port
//	fw.Claim(decide, nft.Port(…))        // with another owner, decide chooses
//	fw.Remove(elements...)               // missing is success, another owner's is kept
//	fw.Withdraw(heir, elements...)       // heir may replace each
//	fw.Queue(extra)                      // work beside elements: conditions, package iptnft
//	e, ok, err := fw.Get(set, key)       // one element by key
//	err := fw.Commit(ctx)                // looks once, sends one transaction, waits for removals
//	fw.Close()                           // after the link is gone: see Close
//
// A DEL that also deletes a link calls Start before it and Commit after it, and so does not
// wait for removals at all.
//
// # The model
//
// An attachment has elements of plain sets and data maps. Each element has a key, and a
// comment that begins with the owner key; within.go describes how they name the
// attachment's network. A network has a chain for portmap's conditions and, if it spans
// many hosts, ranges in interval sets. The transaction of the first element makes the
// static chains and rules. They carry a schema number; a program refuses a newer one.
// Verdict maps with jumps hold no attachments: adding to one makes the kernel validate the
// table again.
//
// # The cost
//
// Measured on Linux 6.18 with 2 cores by TestChurn, for 0 to 20,000 elements alike: five
// elements are looked up and added in 0.2 ms, socket included. Removal by expiry is a
// transaction of 0.2 ms and takes a tick of the kernel's clock until it is visible (2-5
// ms). Removal by deletion makes the closing of the socket wait 11-15 ms for RCU, and every
// other process's transaction with it. Look before you write: a transaction that fails
// waits as long.
package nft
