// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package iptnft works in the tables of iptables-nft over netlink, without
// iptables: it accepts a network's traffic where `filter FORWARD` drops, and
// removes what the reference plugins left behind for an attachment, in their
// nftables tables too.
//
// Everything here is an nft.Extra, so it joins the one transaction of a plugin:
//
//	fw.Queue(iptnft.Accept(subnets, adminChain))
//	fw.Queue(iptnft.Leftovers(attachment, addrs))
//
// Rules are written so that iptables-nft 1.8.9 prints them: the addresses as
// native expressions, the connection state as iptables' own match (a native
// `ct state` makes iptables refuse the whole table as incompatible), the
// comment in nft's place for it. Tables of iptables-legacy cannot be reached over netlink;
// LegacyTables reports whether any are in use.
package iptnft
