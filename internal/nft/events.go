// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Touch is how a transaction changed the network policies in our table.
type Touch int

// Package internal/policy/enforce changes the revision, too, when it changes them.
const (
	TouchClosed   Touch = iota // an ADD closed a pod
	TouchRevision              // it changed the revision
	TouchForeign               // it did not, or it deleted the table
	TouchMissed                // events were lost
)

// WatchPolicies calls touched after each transaction that changed the network policies, even one of
// this process, until ctx ends. It calls ready when it has begun to watch.
func WatchPolicies(ctx context.Context, ready func(), touched func(Touch)) error {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("watch nftables: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { c.Close() }) //nolint:errcheck // Receive ends
	defer func() {
		if stop() {
			c.Close() //nolint:errcheck // nothing was written
		}
	}()
	_ = c.SetReadBuffer(eventBuffer) // else events are lost sooner
	if err := c.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
		return fmt.Errorf("watch nftables: %w", err)
	}
	ready()
	var t touches
	for {
		msgs, err := c.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			t = touches{}
			touched(TouchMissed)
			continue
		case err != nil:
			return fmt.Errorf("watch nftables: %w", err)
		}
		for _, m := range msgs {
			if how, ok := t.add(m); ok {
				touched(how)
			}
		}
	}
}

// eventBuffer has room, in bytes, for the events of a large change of policies.
const eventBuffer = 4 << 20

// touches collects the messages of one transaction. The last one is NFT_MSG_NEWGEN.
type touches struct{ closed, revision, other bool }

// add adds a message. ok is true if it ends a transaction that changed policies.
func (t *touches) add(m netlink.Message) (how Touch, ok bool) {
	const types = 1<<8 - 1
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES {
		return 0, false
	}
	kind := int(m.Header.Type & types)
	if kind != unix.NFT_MSG_NEWGEN {
		t.note(kind, m)
		return 0, false
	}
	was := *t
	*t = touches{}
	switch {
	case was.closed:
		return TouchClosed, true
	case was.revision:
		return TouchRevision, true
	}
	return TouchForeign, was.other
}

// note looks at which object a message changes.
func (t *touches) note(kind int, m netlink.Message) {
	a, err := message(m)
	if err != nil || m.Data[0] != unix.NFPROTO_INET || a.Text(unix.NFTA_TABLE_NAME) != TableName {
		return
	}
	var name string
	switch kind {
	case unix.NFT_MSG_DELTABLE:
		t.other = true
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		name = a.Text(unix.NFTA_CHAIN_NAME)
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		name = a.Text(unix.NFTA_RULE_CHAIN)
	case unix.NFT_MSG_NEWSET, unix.NFT_MSG_DELSET, unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_DELSETELEM:
		name = a.Text(unix.NFTA_SET_NAME) // of elements, NFTA_SET_ELEM_LIST_SET is the same number
	case unix.NFT_MSG_NEWOBJ, unix.NFT_MSG_DELOBJ:
		name = a.Text(unix.NFTA_OBJ_NAME)
	}
	element := kind == unix.NFT_MSG_NEWSETELEM || kind == unix.NFT_MSG_DELSETELEM
	closed := ClosedSets()
	switch {
	case element && slices.Contains(slices.Concat(closed[0][:], closed[1][:]), name):
		t.closed = t.closed || kind == unix.NFT_MSG_NEWSETELEM
	case element && OfSources(name): // an ADD's or a DEL's
	case OfSources(name): // an ADD may make it; only an agent that is being removed deletes it
		removed := []int{unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_DELRULE, unix.NFT_MSG_DELSET, unix.NFT_MSG_DELOBJ}
		t.other = t.other || slices.Contains(removed, kind)
	case element && name == SetPolicy:
		t.revision = t.revision || kind == unix.NFT_MSG_NEWSETELEM
	case OfPolicies(name):
		t.other = true
	}
}
