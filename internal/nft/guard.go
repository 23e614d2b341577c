// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// The kernel counts all changes of a network namespace's ruleset, by any program. A transaction can
// begin with the number for which it was planned: the kernel refuses it if the ruleset has changed
// since. So nothing can change between our look and the transaction.

const batchGeneration = 1 // NFNL_BATCH_GENID of include/uapi/linux/netfilter/nfnetlink.h

// guard returns the generation of the ruleset, as an attribute for the beginning of a transaction. It
// returns nil if no queued work is Guarded.
func (c *Conn) guard() ([]byte, error) {
	if !slices.ContainsFunc(c.extras, func(x Extra) bool { _, ok := x.(Guarded); return ok }) {
		return nil, nil
	}
	generation, err := c.generation()
	if err != nil {
		return nil, err
	}
	return netlink.MarshalAttributes([]netlink.Attribute{{Type: batchGeneration, Data: generation}})
}

// generation returns the generation of the ruleset, in the kernel's bytes.
func (c *Conn) generation() ([]byte, error) {
	req := netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0},
	}
	if _, err := c.nl.send([]netlink.Message{req}); err != nil {
		return nil, fmt.Errorf("ask nftables for its generation: %w", err)
	}
	got, err := c.nl.receive()
	if err != nil || len(got) == 0 {
		return nil, fmt.Errorf("ask nftables for its generation: %d answers: %w", len(got), err)
	}
	a, err := message(got[0])
	return a.Attr(unix.NFTA_GEN_ID), err
}
