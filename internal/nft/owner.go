// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// tableFlagOwner makes a table go with the socket that made it, and refuses others (NFT_TABLE_F_OWNER, Linux 5.12).
const tableFlagOwner = 2

// lacksOwner reports whether the kernel refused the flag.
func lacksOwner(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)
}

// tableMessage returns a message that makes or removes a table. google/nftables v0.3.0 cannot write a table's flags. If the table exists, one
// that makes it fails with EEXIST.
func tableMessage(kind int, f nftables.TableFamily, name string, flags byte) netlink.Message {
	how := netlink.Request
	body := appendString([]byte{byte(f), unix.NFNETLINK_V0, 0, 0}, unix.NFTA_TABLE_NAME, name)
	if kind == unix.NFT_MSG_NEWTABLE {
		how |= netlink.Create | netlink.Excl
		body = append(appendHead(body, unix.NFTA_TABLE_FLAGS, unix.SizeofNlAttr+4), 0, 0, 0, flags)
	}
	return netlink.Message{Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: how}, Data: body}
}
