// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/rawnl"
)

// TraceTable is the name of the tables of `patchbay trace`, inet and bridge. They mark the packets of a probe, so that
// the kernel tells which rules of all tables these meet (nftrace). They have two chains at each hook, which show how far a packet came:
//
//	<hook>_begin    before all others; at prerouting and output it marks
//	<hook>_end      after all others
//
// The tables have an owner (NFT_TABLE_F_OWNER, Linux 5.12): the kernel removes them when the process ends, however it
// ends. An older kernel refuses the flag. There each rule begins with a set whose elements expire: what a killed process
// leaves does nothing after traceExpiry, and the next trace removes it.
const TraceTable = "patchbay_trace"

const (
	traceSet    = "while"
	traceExpiry = 10 * time.Second
)

// TraceMatch describes packets of a probe: a protocol, and bytes at an offset from the beginning of its header.
type TraceMatch struct {
	Protocol uint8
	Offset   uint32
	Value    []byte // at most 16 bytes
}

// Trace is the tables in one network namespace, and the socket that receives what the kernel tells.
type Trace struct {
	Frames bool // the kernel can trace what a bridge forwards
	Lost   bool // the kernel told more than the socket could hold

	tables Conn
	events *socket
	flags  byte // of the tables; 0 if the kernel knows no owner
}

// OpenTrace marks packets that meet one of the matches, in the namespace in which dial opens netlink sockets. Only one
// trace may run at a time.
func OpenTrace(dial func(protocol int) (fd int, err error), matches ...TraceMatch) (*Trace, error) {
	t := &Trace{flags: tableFlagOwner}
	if err := t.open(dial, matches); err != nil {
		return nil, errors.Join(fmt.Errorf("trace packets: %w", err), t.Close())
	}
	return t, nil
}

func (t *Trace) open(dial func(protocol int) (int, error), matches []TraceMatch) (err error) {
	if t.tables.nl, err = socketBy(dial); err != nil {
		return fmt.Errorf("open nfnetlink: %w", err)
	}
	if t.events, err = socketBy(dial); err != nil {
		return fmt.Errorf("open nfnetlink: %w", err)
	}
	if err := t.listen(); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if err := t.install(nftables.TableFamilyINet, matches); err != nil {
		return err
	}
	t.Frames = t.install(nftables.TableFamilyBridge, matches) == nil
	return nil
}

func socketBy(open func(protocol int) (int, error)) (*socket, error) {
	fd, err := open(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	s, err := rawnl.Bind(fd)
	if err != nil {
		return nil, err
	}
	return newSocket(s)
}

// listen makes the socket receive what the kernel tells, without waiting for it.
func (t *Trace) listen() error {
	fd := int(t.events.Socket)
	t.events.buf = make([]byte, longestPart)
	return errors.Join(t.events.grow(1<<20), unix.SetNonblock(fd, true),
		unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, unix.NFNLGRP_NFTRACE))
}

// Close removes the tables, and closes the sockets.
func (t *Trace) Close() (err error) {
	if t.flags == 0 && t.tables.nl != nil {
		err = t.remove()
	}
	if t.events != nil {
		err = errors.Join(err, t.events.Close())
		t.events = nil
	}
	return errors.Join(err, t.tables.Close())
}

// install makes the table of a family.
func (t *Trace) install(f nftables.TableFamily, matches []TraceMatch) error {
	err := t.load(f, matches)
	if errors.Is(err, unix.EEXIST) { // an older kernel has kept what a killed process left; it does not let us remove a table with an owner
		if err = t.remove(); err == nil {
			err = t.load(f, matches)
		}
	}
	if lacksOwner(err) && f == nftables.TableFamilyINet && t.flags != 0 {
		t.flags = 0
		err = t.load(f, matches)
	}
	return err
}

// remove removes tables that have no owner.
func (t *Trace) remove() (err error) {
	for _, f := range [...]nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyBridge} {
		gone := t.tables.send([]netlink.Message{tableMessage(unix.NFT_MSG_DELTABLE, f, TraceTable, 0)})
		if !errors.Is(gone, unix.ENOENT) && !errors.Is(gone, unix.EAFNOSUPPORT) && !errors.Is(gone, unix.EOPNOTSUPP) {
			err = errors.Join(err, gone)
		}
	}
	return err
}

func (t *Trace) load(f nftables.TableFamily, matches []TraceMatch) error {
	msgs, err := encode(func(enc *nftables.Conn) error {
		return t.fill(enc, &nftables.Table{Family: f, Name: TraceTable}, matches)
	})
	if err != nil {
		return err
	}
	return t.tables.send(append([]netlink.Message{tableMessage(unix.NFT_MSG_NEWTABLE, f, TraceTable, t.flags)}, msgs...))
}

// fill queues what is in the table.
func (t *Trace) fill(enc *nftables.Conn, table *nftables.Table, matches []TraceMatch) error {
	if t.flags == 0 {
		set := &nftables.Set{Table: table, Name: traceSet, KeyType: nftables.TypeInetProto, HasTimeout: true}
		var elems []nftables.SetElement
		for _, m := range matches {
			elems = append(elems, nftables.SetElement{Key: []byte{m.Protocol}, Timeout: traceExpiry})
		}
		if err := enc.AddSet(set, elems); err != nil {
			return err
		}
	}
	for hook, name := range [...]string{"prerouting", "input", "forward", "output", "postrouting"} {
		begin := traceChain(enc, table, name+"_begin", hook, math.MinInt32)
		traceChain(enc, table, name+"_end", hook, math.MaxInt32-1)
		if name != "prerouting" && name != "output" {
			continue
		}
		for _, m := range matches {
			enc.AddRule(&nftables.Rule{Table: table, Chain: begin, Exprs: t.marks(m)})
		}
	}
	return nil
}

func traceChain(enc *nftables.Conn, table *nftables.Table, name string, hook, prio int) *nftables.Chain {
	at := nftables.ChainHook(hook)
	return enc.AddChain(&nftables.Chain{Table: table, Name: name, Type: nftables.ChainTypeFilter, Hooknum: &at, Priority: nftables.ChainPriorityRef(nftables.ChainPriority(prio))})
}

// marks returns a rule.
func (t *Trace) marks(m TraceMatch) match {
	r := metaIs(expr.MetaKeyL4PROTO, expr.CmpOpEq, []byte{m.Protocol})
	if t.flags == 0 {
		r = append(r, inSet(traceSet, false))
	}
	return append(r,
		&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Offset: m.Offset, Len: uint32(len(m.Value))},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: m.Value},
		&expr.Immediate{Register: reg1, Data: []byte{1}},
		&expr.Meta{Key: expr.MetaKeyNFTRACE, SourceRegister: true, Register: reg1})
}
