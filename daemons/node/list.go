// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/daemons/internal/fabric"
	"github.com/patchbay-net/patchbay/daemons/node/plan"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// Listing is what `ls` prints: the Nodes as this node's agent knows them, whatever the API server says now.
type Listing struct {
	Nodes []Line `json:"nodes"`
	// Heard is when the agent last reported, in seconds before now. If it has not reported since the boot, it is nil.
	Heard    *float64            `json:"heardSecondsAgo,omitempty"`
	Unready  string              `json:"unready,omitempty"`
	Problems []resident.Reported `json:"problems,omitempty"`
}

// Line describes a Node.
type Line struct {
	plan.Node
	Self         bool      `json:"self,omitempty"`
	MissingSince time.Time `json:"missingSince,omitzero"`
}

// List reads what the agent of the node has saved. It needs neither the agent nor the API server.
func List(p paths.Paths, self string) (*Listing, error) {
	c, _, err := readCache(cachePath(p))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read %s: %w: the agent of this node has not heard of any Node yet, or runs on another node", cachePath(p), err)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", cachePath(p), err)
	}
	l := &Listing{Nodes: []Line{}}
	for _, n := range c.Nodes {
		l.Nodes = append(l.Nodes, Line{n, n.Name == self, c.Missing[n.Name]})
	}
	r, age, err := resident.ReadReport(p, Service)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	heard := age.Seconds()
	l.Heard, l.Unready, l.Problems = &heard, r.Unready, r.Problems
	return l, err
}

// silence is how old the last report of an agent is when the agent counts as dead. A running agent reports every
// minute.
const silence = 3 * reconcileEvery

// Print writes a listing as a table.
func (l *Listing) Print(to io.Writer) error {
	var p fabric.Page
	p.Row("NODE", "PODCIDRS", "ADDRESSES", "STATE")
	for _, n := range l.Nodes {
		p.Row(n.Name, strings.Join(slices.Concat(n.Pods, n.Former), ","), strings.Join(n.Addrs, ","), n.state())
	}
	const here = "on this node"
	switch {
	case l.Heard == nil:
		p.Wrong(here, "the agent has reported nothing since the boot")
	case *l.Heard > silence.Seconds():
		p.Wrong(here, fmt.Sprintf("the agent last reported %v ago", time.Duration(*l.Heard)*time.Second))
	}
	if l.Unready != "" {
		p.Wrong(here, "it is not ready: "+l.Unready)
	}
	for _, r := range l.Problems {
		where := here
		if r.Elsewhere {
			where = "on another node"
		}
		p.Wrong(where, r.Reason+": "+r.Text)
	}
	return p.Print(to)
}

// state says in words what the agent makes of a Node.
func (n *Line) state() string {
	switch {
	case n.Self:
		return "this node"
	case n.Missing:
		return "missing since " + n.MissingSince.Format(time.RFC3339)
	case n.Leaving:
		return "being deleted"
	}
	return "known"
}
