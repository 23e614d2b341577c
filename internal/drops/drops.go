// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package drops is what the agent of a node tells `patchbay drops` about packets that were dropped.
package drops

import (
	"time"

	"github.com/patchbay-net/patchbay/internal/sight"
)

// Socket returns where the agent listens (sight.Socket).
func Socket(run string) string { return sight.Socket(run, "drops.sock") }

// Kept is how many lines the agent keeps in memory.
const Kept = 10000

// Request is what a client wants to know.
type Request struct {
	Follow bool   `json:"follow,omitempty"` // go on with new lines until the client closes the connection
	Last   int    `json:"last,omitempty"`   // at most so many former lines; 0: all that are kept
	End    string `json:"end,omitempty"`    // only lines with this pod (namespace/name) or address at one end
}

// Drop is a packet that was dropped. Its addresses are those after destination NAT and before source NAT.
type Drop struct {
	Time      time.Time `json:"time"` // when the agent got it, up to 0.1 s later
	Direction string    `json:"direction"`
	Cause     string    `json:"cause"` // isolated, denied, closed, midstream or forged
	From      sight.End `json:"from"`
	To        sight.End `json:"to"`
	Protocol  string    `json:"protocol"`
	Port      uint16    `json:"port,omitempty"` // of the destination; of ICMP the type
	Policies  []string  `json:"policies,omitempty"`
	Rule      string    `json:"rule,omitempty"`
	Reason    string    `json:"reason"`

	// Unexplained means that no policy that the agent knows denies the packet: the rules have just changed.
	Unexplained bool `json:"unexplained,omitempty"`
}

// More says that further packets were dropped, and that none of them is a Drop.
type More struct {
	Direction string `json:"direction"`
	Cause     string `json:"cause"`
	Packets   uint64 `json:"packets"`
}

// Totals are sums since the agent began to read. Counted are the kernel's counters. Shown, Lost and NotShown add up to it.
type Totals struct {
	Since       time.Time `json:"since"`
	Counted     uint64    `json:"counted"`
	Shown       uint64    `json:"shown"`
	Lost        uint64    `json:"lost"`     // told by the kernel, and not received
	NotShown    uint64    `json:"notShown"` // kept back by the limits, or while nothing was read
	Unexplained uint64    `json:"unexplained"`
}

// Line is one of these.
type Line struct {
	Drop   *Drop   `json:"drop,omitempty"`
	More   *More   `json:"more,omitempty"`
	Missed uint64  `json:"missed,omitempty"` // lines that this client was too slow for
	Totals *Totals `json:"totals,omitempty"` // the last line, unless the client follows
	Error  string  `json:"error,omitempty"`  // why nothing is told, or the request is wrong
}

// Concerns reports whether a line is for a request. A More is about packets of all ends.
func (l Line) Concerns(r Request) bool {
	return r.End == "" || l.Drop != nil && (l.Drop.From.Is(r.End) || l.Drop.To.Is(r.End))
}
