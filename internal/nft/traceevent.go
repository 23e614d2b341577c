// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// TraceEvent is what one rule, or the policy of one base chain, did with a packet.
type TraceEvent struct {
	Packet uint32 // the kernel's number of the packet in the namespace
	Family nftables.TableFamily
	Table  string
	Chain  string
	Handle uint64 // of the rule; 0 for the policy of a base chain
	Code   int32  // the verdict: 0 is drop, 1 accept, unix.NFT_JUMP, …
	To     string // the chain of a jump or goto
	In     int    // index of the link; 0 if there is none
	Out    int
	End    bool // the chain has no rule more; the next event says what follows

	// Only the first event of a packet in a base chain has the links and these.
	Network   []byte // at most 40 bytes
	Transport []byte // at most 20 bytes
}

// msgTrace is the type of what the kernel tells.
const msgTrace = netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_TRACE)

// Fd returns the descriptor that can be read if Events has something to return, for poll(2).
func (t *Trace) Fd() int { return int(t.events.Socket) }

// Events returns what the kernel has told since the last call, in order. It does not wait.
func (t *Trace) Events() (list []TraceEvent, err error) {
	for {
		msgs, err := t.events.Receive(t.events.buf)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return list, nil
		case errors.Is(err, unix.ENOBUFS):
			t.Lost = true
			continue
		case err != nil:
			return list, err
		}
		for _, raw := range msgs {
			m := messageOf(raw)
			if m.Header.Type != msgTrace {
				continue
			}
			a, err := message(m)
			if err != nil {
				return list, err
			}
			list = append(list, traceEvent(nftables.TableFamily(m.Data[0]), a))
		}
	}
}

func traceEvent(f nftables.TableFamily, a Attrs) TraceEvent {
	e := TraceEvent{
		Packet: a.Number(unix.NFTA_TRACE_ID), Family: f, Table: a.Text(unix.NFTA_TRACE_TABLE), Chain: a.Text(unix.NFTA_TRACE_CHAIN),
		In: int(a.Number(unix.NFTA_TRACE_IIF)), Out: int(a.Number(unix.NFTA_TRACE_OIF)),
		Network: a.Attr(unix.NFTA_TRACE_NETWORK_HEADER), Transport: a.Attr(unix.NFTA_TRACE_TRANSPORT_HEADER),
	}
	if a.Number(unix.NFTA_TRACE_TYPE) == unix.NFT_TRACETYPE_POLICY {
		e.Code = int32(a.Number(unix.NFTA_TRACE_POLICY))
		return e
	}
	e.Handle = a.long(unix.NFTA_TRACE_RULE_HANDLE)
	e.End = e.Handle == 0
	e.Code, e.To, _ = verdictIn(a.Attr(unix.NFTA_TRACE_VERDICT))
	return e
}
