// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package flows makes flows of the connections that the kernel tracks: which pod, container or address talks to which, and
// to which port. It also is what the agent of a node tells `patchbay flows`.
//
// A Table is filled by dumps of conntrack, so it costs a packet nothing and sees what the kernel still has at a dump: nearly
// all TCP connections, because the kernel keeps them for two minutes after their end, and UDP for thirty seconds.
package flows

import (
	"net/netip"
	"time"

	"github.com/patchbay-net/patchbay/internal/sight"
)

// Socket returns where the agent listens (sight.Socket).
func Socket(run string) string { return sight.Socket(run, "flows.sock") }

// Request is what a client wants to know.
type Request struct {
	Follow bool   `json:"follow,omitempty"` // new connections, until the client closes the connection
	Most   int    `json:"most,omitempty"`   // at most so many flows; 0: all
	End    string `json:"end,omitempty"`    // only flows with this pod, container or address at one end
}

// Flow is what connections from one end to one port of another have in common. The addresses are those after destination
// NAT and before source NAT.
type Flow struct {
	From     sight.End      `json:"from"` // began the connections
	To       sight.End      `json:"to"`
	Protocol string         `json:"protocol"`
	Port     uint16         `json:"port,omitempty"` // of To; of ICMP the type
	Via      netip.AddrPort `json:"via,omitzero"`   // where From sent to, if destination NAT changed it: a Service or a published port
	Now      int            `json:"now"`            // connections in the last dump
	Seen     uint64         `json:"seen"`           // connections since the flow was first seen
	First    time.Time      `json:"first"`          // dumps that had the flow
	Last     time.Time      `json:"last"`
	Packets  uint64         `json:"packets,omitempty"` // of the connections in the last dump, in both directions
	Bytes    uint64         `json:"bytes,omitempty"`   // as Packets; 0 if the kernel does not count (Totals.Counted)
}

// Folded are connections for which the table has no flow of their own, because their source has MostOf flows. If both ends
// are empty, they are between unknown addresses, or the table had MostFlows.
type Folded struct {
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"` // of unknown addresses to this one
	Now  int    `json:"now"`
	Seen uint64 `json:"seen"`
}

// Connection is a new connection, as the kernel told it.
type Connection struct {
	Time     time.Time `json:"time"` // when the agent got it, up to 0.1 s later
	From     sight.End `json:"from"`
	To       sight.End `json:"to"`
	Protocol string    `json:"protocol"`
	Port     uint16    `json:"port,omitempty"`
}

// More says that further connections began, and that none of them is a Connection.
type More struct {
	NotShown uint64 `json:"notShown"` // kept back by the limit
	Lost     uint64 `json:"lost"`     // told by the kernel, and not received
}

// Totals are sums of a table. Seen is what all flows and all Folded have seen, and Forgotten.
type Totals struct {
	Since       time.Time `json:"since"` // the first dump
	At          time.Time `json:"at"`    // the last one
	Dumps       uint64    `json:"dumps"`
	Seconds     float64   `json:"seconds"`     // that the last dump took
	Next        float64   `json:"nextSeconds"` // after which the next one begins; 0: there is none
	Connections int       `json:"connections"` // in the last dump
	Flows       int       `json:"flows"`
	Seen        uint64    `json:"seen"`
	Folded      uint64    `json:"folded"`    // of these, connections without a flow of their own
	Forgotten   uint64    `json:"forgotten"` // of these, connections of flows that were long idle
	Unmarked    int       `json:"unmarked"`  // connections of the last dump beyond MostMarked: if they are new, Seen lacks them
	Counted     bool      `json:"counted"`   // the kernel counts packets and bytes (net.netfilter.nf_conntrack_acct)
}

// Line is one of these.
type Line struct {
	Flow       *Flow       `json:"flow,omitempty"`
	Folded     *Folded     `json:"folded,omitempty"`
	Connection *Connection `json:"connection,omitempty"`
	More       *More       `json:"more,omitempty"`
	Missed     uint64      `json:"missed,omitempty"` // lines that this client was too slow for
	Totals     *Totals     `json:"totals,omitempty"` // the last line, unless the client follows
	Error      string      `json:"error,omitempty"`
}

// concerns reports whether one of two ends is asked for.
func (r Request) concerns(from, to sight.End) bool {
	return r.End == "" || from.Is(r.End) || to.Is(r.End)
}

// Concerns reports whether a line about a connection is for a request. Lines about others are for all.
func (r Request) Concerns(l Line) bool {
	return l.Connection == nil || r.concerns(l.Connection.From, l.Connection.To)
}
