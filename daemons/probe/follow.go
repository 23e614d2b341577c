// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"net/netip"
	"strings"

	"github.com/google/nftables"

	"github.com/patchbay-net/patchbay/internal/nft"
)

// view is what was seen in one place.
type view struct {
	at     *place
	trace  *nft.Trace
	packet *packet
	known  map[uint32]seen // by the kernel's number of the packet
	of     [kinds]sight
	events []event // in order, without those of our own table
}

// sight is how far packets of one kind came in a place.
type sight struct {
	last     mark
	passed   []mark
	drop     *nft.TraceEvent
	in, out  int // links at the last hook of IP; 0 if there is none
	src, dst netip.Addr
	reset    bool
	icmp     [2]byte
}

// mark is one of our chains: the begin or the end of a hook.
type mark struct {
	hook   string
	end    bool
	bridge bool // the hook of a bridge, which forwards frames
}

type event struct {
	nft.TraceEvent
	seen
	hook string
}

func newView(at *place, t *nft.Trace, p *packet) *view {
	return &view{at: at, trace: t, packet: p, known: make(map[uint32]seen)}
}

// read reads what the kernel has told.
func (v *view) read() error {
	list, err := v.trace.Events()
	for _, e := range list {
		v.add(e)
	}
	return err
}

func (v *view) add(e nft.TraceEvent) {
	s, ok := v.packet.read(e.Network, e.Transport)
	if !ok {
		if s, ok = v.known[e.Packet]; !ok {
			return
		}
	}
	v.known[e.Packet] = s
	of := &v.of[s.kind]
	if e.Table == nft.TraceTable {
		if e.Network != nil {
			of.at(e, s)
		}
		return
	}
	if e.End {
		return
	}
	if e.Code == drop && of.drop == nil {
		of.drop = &e
	}
	v.events = append(v.events, event{e, s, of.last.hook})
}

const drop = 0 // NF_DROP

// at notes that packets have come to one of our chains.
func (o *sight) at(e nft.TraceEvent, s seen) {
	hook, which, _ := strings.Cut(e.Chain, "_")
	m := mark{hook, which == "end", e.Family == nftables.TableFamilyBridge}
	if m.hook == "prerouting" && !m.bridge && o.came(m.hook) {
		m.end = true // the bridge has run the hook (br_netfilter), and the kernel skips the rest of it
	}
	o.last = m
	o.passed = append(o.passed, o.last)
	if !m.bridge {
		o.in, o.out = e.In, e.Out
	}
	o.src, o.dst, o.reset, o.icmp = s.src, s.dst, s.reset, s.icmp
}

// seen reports whether such a packet was in the place at all.
func (o *sight) seen() bool { return o.last.hook != "" }

// came reports whether packets came through a hook.
func (o *sight) came(hook string) bool {
	for _, m := range o.passed {
		if m.hook == hook && m.end && !m.bridge {
			return true
		}
	}
	return false
}

// departed reports whether packets left the place: their last hook is the last one of IP or, if they left by a bridge, of the bridge.
func (o *sight) departed() bool { return o.last.hook == "postrouting" && o.last.end }
