// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package drops is what the agent of a node tells `patchbay drops` about packets that were dropped, and the client that
// asks. The agent listens on a Unix socket that only root may use. A client sends one Request as a line of JSON, and gets
// a Line of JSON for each thing that the agent has to say.
package drops

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"time"
)

// Socket returns where the agent listens, in the directory of records (paths.Paths.Run). `patchbayd node clean` removes it.
func Socket(run string) string { return filepath.Join(run, "node", "drops.sock") }

// Kept is how many lines the agent keeps in memory.
const Kept = 10000

// Request is what a client wants to know.
type Request struct {
	Follow bool   `json:"follow,omitempty"` // go on with new lines until the client closes the connection
	Last   int    `json:"last,omitempty"`   // at most so many former lines; 0: all that are kept
	End    string `json:"end,omitempty"`    // only lines with this pod (namespace/name) or address at one end
}

// End is one end of a packet. Pod is empty if the agent knows no pod with the address.
type End struct {
	Address netip.Addr `json:"address"`
	Pod     string     `json:"pod,omitempty"`
}

// String returns "shop/web 10.1.0.5".
func (e End) String() string {
	if e.Pod == "" {
		return e.Address.String()
	}
	return e.Pod + " " + e.Address.String()
}

// is reports whether an end is meant by a word of a Request.
func (e End) is(word string) bool { return word == e.Pod || word == e.Address.String() }

// Drop is a packet that was dropped. Its addresses are those after destination NAT and before source NAT.
type Drop struct {
	Time      time.Time `json:"time"` // when the agent got it, up to 0.1 s later
	Direction string    `json:"direction"`
	Cause     string    `json:"cause"` // isolated, denied, closed, midstream or forged
	From      End       `json:"from"`
	To        End       `json:"to"`
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
	return r.End == "" || l.Drop != nil && (l.Drop.From.is(r.End) || l.Drop.To.is(r.End))
}

// ErrDial means that no agent listens.
var ErrDial = errors.New("no agent that tells dropped packets runs on this node")

// Ask calls each with every line of the agent, until the agent has said all, each returns an error, or ctx ends. If no
// process listens at the path, the error wraps ErrDial.
func Ask(ctx context.Context, path string, r Request, each func(Line) error) error {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDial, err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() }) //nolint:errcheck // it ends the reading
	defer func() {
		if stop() {
			conn.Close() //nolint:errcheck // nothing more is written
		}
	}()
	if err := json.NewEncoder(conn).Encode(r); err != nil {
		return fmt.Errorf("ask the agent for dropped packets: %w", err)
	}
	for in := json.NewDecoder(conn); ; {
		var l Line
		switch err := in.Decode(&l); {
		case ctx.Err() != nil, errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read dropped packets from the agent: %w", err)
		}
		if err := each(l); err != nil {
			return err
		}
	}
}
