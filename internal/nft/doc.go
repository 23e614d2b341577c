// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package nft is the firewall of Patchbay: one nftables table, `inet patchbay`
// (and `bridge patchbay` once macspoofchk is used), over netlink, without nft
// or iptables.
//
// The shape of the API, for the writer of a plugin:
//
//	fw := nft.Open(runDir)             // dials at first use, in the host's namespace
//	fw.Add(nft.Masquerade(subnet)...)  // queues; constructors are pure
//	fw.Add(nft.Port(p, comment))       // an error of Commit when another owner has the port
//	fw.Replace(nft.Port(p, comment))   // takes the port over
//	fw.Remove(elements...)             // missing is success, another owner's stays
//	e, ok, err := fw.Get(set, key)     // one element by key, 0.06 ms
//	err := fw.Commit(ctx)              // looks, then sends one transaction
//	fw.Close()                         // after the link is gone: see Close
//
// What an attachment has is elements of plain sets and data maps, keyed, each
// with a comment that begins with the owner key; what a network has is
// elements of interval sets and, for portmap's conditions, a chain. The static
// chains and rules are made in the transaction of the first element. Every
// number that decided this is in docs/adr (measured on google/nftables v0.3.0,
// Linux 6.18) and is measured again by TestChurn.
package nft
