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

// Touch is how a transaction changed the network policies in our table, or the table of Services.
type Touch int

// Packages internal/policy/enforce and internal/services/enforce change the revision, too, when they change something.
const (
	TouchClosed   Touch = iota // an ADD closed a pod
	TouchRevision              // it changed the revision
	TouchForeign               // it did not, or it deleted the table
	TouchMissed                // events were lost
	TouchSources               // it removed elements of the check of sources, as each DEL does
)

// WatchPolicies calls touched after each transaction that changed the network policies, even one of
// this process, until ctx ends. It calls ready when it has begun to watch.
func WatchPolicies(ctx context.Context, ready func(), touched func(Touch)) error {
	return watch(ctx, touches{table: TableName, judge: (*touches).policies}, ready, touched)
}

// WatchServices does the same for transactions that changed the table of Services. What clients with affinity remember is no
// change of it.
func WatchServices(ctx context.Context, ready func(), touched func(Touch)) error {
	return watch(ctx, touches{table: ServicesTable, judge: (*touches).services}, ready, touched)
}

// watch collects the messages of each transaction in t, which is empty.
func watch(ctx context.Context, t touches, ready func(), touched func(Touch)) error {
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
	for {
		msgs, err := c.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			t.changed = changed{}
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

// eventBuffer has room, in bytes, for the events of a large change.
const eventBuffer = 4 << 20

// touches collects the messages of one transaction. The last one is NFT_MSG_NEWGEN.
type touches struct {
	table string
	judge func(t *touches, kind int, element bool, object string) // notes what a message about an object of the table means
	changed
}

type changed struct {
	closed, revision, other bool

	sources bool // elements of the check of sources were removed
	made    bool // a chain of the check of sources was made
	rules   bool // such a chain got rules
}

// foreign reports whether the transaction changed what only other programs change without a new revision. An ADD makes
// the chains of sources together with their rules.
func (c changed) foreign() bool { return c.other || c.rules && !c.made }

// add adds a message. ok is true if it ends a transaction that changed something.
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
	was := t.changed
	t.changed = changed{}
	switch {
	case was.closed:
		return TouchClosed, true
	case was.revision:
		return TouchRevision, true
	case was.sources && !was.foreign():
		return TouchSources, true
	}
	return TouchForeign, was.foreign()
}

// note looks at which object a message changes.
func (t *touches) note(kind int, m netlink.Message) {
	a, err := message(m)
	if err != nil || m.Data[0] != unix.NFPROTO_INET || a.Text(unix.NFTA_TABLE_NAME) != t.table {
		return
	}
	var name string
	switch kind {
	case unix.NFT_MSG_DELTABLE:
		t.other = true
		return
	case unix.NFT_MSG_NEWTABLE:
		t.other = t.other || a.Number(unix.NFTA_TABLE_FLAGS)&unix.NFT_TABLE_F_DORMANT != 0
		return
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		name = a.Text(unix.NFTA_CHAIN_NAME)
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		name = a.Text(unix.NFTA_RULE_CHAIN)
	case unix.NFT_MSG_NEWSET, unix.NFT_MSG_DELSET, unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_DELSETELEM:
		name = a.Text(unix.NFTA_SET_NAME) // of elements, NFTA_SET_ELEM_LIST_SET is the same number
	case unix.NFT_MSG_NEWOBJ, unix.NFT_MSG_DELOBJ:
		name = a.Text(unix.NFTA_OBJ_NAME)
	default:
		return
	}
	t.judge(t, kind, kind == unix.NFT_MSG_NEWSETELEM || kind == unix.NFT_MSG_DELSETELEM, name)
}

func (t *touches) policies(kind int, element bool, name string) {
	closed := ClosedSets()
	switch {
	case element && slices.Contains(slices.Concat(closed[0][:], closed[1][:]), name):
		t.closed = t.closed || kind == unix.NFT_MSG_NEWSETELEM
	case element && OfSources(name): // an ADD's or a DEL's
		t.sources = t.sources || kind == unix.NFT_MSG_DELSETELEM && slices.Contains(SourceSets(), name)
	case OfSources(name): // an ADD may make it; only an agent that is being removed deletes it
		t.made = t.made || kind == unix.NFT_MSG_NEWCHAIN
		t.rules = t.rules || kind == unix.NFT_MSG_NEWRULE && name != chainSourcesTell // TellForged replaces its rules
		removed := []int{unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_DELRULE, unix.NFT_MSG_DELSET, unix.NFT_MSG_DELOBJ}
		t.other = t.other || slices.Contains(removed, kind)
	case element && name == SetPolicy:
		t.revision = t.revision || kind == unix.NFT_MSG_NEWSETELEM
	case OfPolicies(name):
		t.other = true
	}
}

func (t *touches) services(kind int, element bool, name string) {
	switch {
	case element && (name == AffinityMap(false) || name == AffinityMap(true)):
	case element && name == setRevision && kind == unix.NFT_MSG_NEWSETELEM:
		t.revision = true
	default:
		t.other = true
	}
}
