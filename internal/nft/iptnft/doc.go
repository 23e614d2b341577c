// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package iptnft changes the tables of iptables-nft over netlink, without the iptables program.
// It accepts a network's traffic if `filter FORWARD` drops. It also removes what the reference
// plugins left behind for an attachment, in these tables and in their own nftables tables.
//
// Each operation is an nft.Extra, so it becomes part of the plugin's only transaction:
//
//	fw.Queue(iptnft.Accept(subnets, adminChain))
//	fw.Queue(iptnft.Leftovers(attachment, addrs))
//
// iptables-nft 1.8.9 can print the rules. Addresses are native nftables expressions. The
// connection state is a match of iptables, because a native `ct state` makes iptables refuse
// the whole table as incompatible. The comment is an nftables comment. Tables of
// iptables-legacy cannot be reached over netlink; LegacyTables reports whether any are in use.
package iptnft
