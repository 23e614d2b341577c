// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package nft is the firewall of Patchbay. Package nft manages the nftables table `inet
// patchbay`, and `bridge patchbay` if macspoofchk is used. Package nft uses netlink and needs
// neither the nft nor the iptables program. testdata/table.golden shows the table as nft lists
// it. Kubernetes' Services have a table of their own (services.go).
//
// How callers use the package:
//
//	fw := nft.Open(runDir)               // dials at first use, in the host's namespace
//	fw.Add(nft.Masqueraded(addr, comment)...) // queues; constructors are pure
//	fw.Add(nft.Port(p, cond, comment))   // *ConflictError of Commit when another owner has the port
//	fw.AddOrDecide(decide, nft.Port(…))  // decide chooses if another owner has the port
//	fw.Remove(elements...)               // skips missing elements and those of other owners
//	fw.Withdraw(heir, elements...)       // like Remove, but heir may return a replacement
//	fw.Queue(extra)                      // work on other objects: conditions, package iptnft
//	e, ok, err := fw.Get(set, key)       // one element by key
//	err := fw.Commit(ctx)                // looks once, sends one transaction, waits for removals
//	fw.Close()                           // call it after the link is deleted: see Close
//
// A DEL that deletes a link calls Start before the deletion and Commit after it. So it never
// waits for removals. If another plugin's DEL follows and deletes the link, a DEL calls Start and
// Leave, and the one that follows calls AwaitTick.
//
// # The model
//
// An attachment has elements in plain sets and data maps. Each element has a key and a comment,
// which begins with the owner key; within.go describes how elements name the attachment's
// network. A network has a chain for portmap's conditions and, if it spans many hosts, ranges
// in interval sets. The transaction that adds the first element also makes the static chains
// and rules. The table has a schema number, and a program refuses a table with a newer number.
// Attachments have no elements in verdict maps with jumps, because adding one makes the kernel
// validate the whole table again.
//
// # The cost
//
// TestChurn measured these times on Linux 6.18 with 2 cores. They are the same for 0 and for
// 20,000 elements. Looking up and adding five elements takes 0.2 ms, including the socket.
// Removal by expiry is a transaction of 0.2 ms; it becomes visible after a tick of the kernel's
// clock (2-5 ms). After a removal by deletion, closing the socket waits 11-15 ms for RCU, and
// transactions of other processes wait too. A transaction that fails causes the same wait, so
// look before you write.
package nft
