// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/internal/conntrack"
	"github.com/patchbay-net/patchbay/internal/flows"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
	"github.com/patchbay-net/patchbay/internal/sight"
)

const flowsLong = `Print who talks to whom on this node: the pods, containers and addresses at both
ends, the port, the Service by which the connection came, and how many
connections there are and were seen.

The agent of the node (patchbayd node) reads the connections that the kernel
tracks every 10 seconds, so a packet costs nothing for it. Connections that began
and ended between two reads are not seen. If the agent does not run, the
connections of this moment are printed.

With -f, new connections are printed as they come, at most 500 a second; the
kernel counts the others. Rules for that exist only while somebody looks.

  patchbay flows --pod shop/db
  patchbay flows -f --json`

type flowsCommand struct {
	app    *app
	Follow bool   `long:"follow" short:"f" description:"print new connections as they come, until interrupted"`
	Pod    string `long:"pod" value-name:"NAMESPACE/POD" description:"only those from or to this pod, container, node or address"`
	Most   int    `long:"most" short:"n" value-name:"FLOWS" default:"100" description:"how many flows to print at most, those with the most connections first; 0: all"`
	JSON   bool   `long:"json" description:"print a JSON object for each line"`

	rows *table
}

// Execute prints the flows, or new connections until an interrupt.
func (c *flowsCommand) Execute([]string) error {
	if err := needRoot("flows"); err != nil {
		return err
	}
	if c.Most < 0 {
		return hinted(fmt.Errorf("--most is %d: it must be 0 or more", c.Most), "patchbay flows --most 20")
	}
	r := flows.Request{Follow: c.Follow, Most: c.Most, End: c.Pod}
	err := sight.Ask(c.app.ctx, flows.Socket(c.app.paths.Run), r, c.print)
	switch {
	case errors.Is(err, sight.ErrDial) && c.Follow:
		return hinted(err, "new connections are told to patchbayd node; patchbay flows without -f prints those of this moment")
	case errors.Is(err, sight.ErrDial):
		return c.moment(r)
	}
	return err
}

// moment prints the flows of this moment, without an agent.
func (c *flowsCommand) moment(r flows.Request) error {
	names, unseen := c.ends()
	t, began := flows.New(), time.Now()
	t.Begin(began)
	err := conntrack.Survey(func(e *conntrack.Entry) {
		t.Add(e, func(a netip.Addr) sight.End {
			end := names[a]
			end.Address = a
			return end
		})
	})
	t.End(time.Since(began), 0)
	for _, l := range t.Lines(r) {
		err = errors.Join(err, c.print(l))
	}
	return errors.Join(err, unseen)
}

// ends returns what has which address on this node, by its attachments.
func (c *flowsCommand) ends() (names map[netip.Addr]sight.End, unseen error) {
	names = map[netip.Addr]sight.End{}
	local, err := enforce.NodeReach()
	c.app.warn(err)
	for _, a := range local {
		names[a] = sight.End{Node: "host"}
	}
	list, unseen := c.app.seen("")
	for _, s := range list {
		for _, text := range s.Addresses {
			if p, err := netip.ParsePrefix(text); err == nil && s.Alive {
				names[p.Addr()] = endOf(s)
			}
		}
	}
	return names, unseen
}

func endOf(s *localAttachment) sight.End {
	if s.Pod != "" {
		return sight.End{Pod: s.Pod}
	}
	return sight.End{Container: s.short()}
}

// print prints one line. Flows are a table, which is printed before what follows them.
func (c *flowsCommand) print(l flows.Line) error {
	if c.JSON || l.Error != "" {
		return c.app.tell(c.JSON, l, l.Error)
	}
	if l.Flow != nil {
		if c.rows == nil {
			c.rows = newTable("FROM", "TO", "PORT", "VIA", "NOW", "SEEN", "LAST", "BYTES")
		}
		c.rows.row(flowCells(l.Flow)...)
		return nil
	}
	text := printable(flowText(l)) + "\n"
	if c.rows != nil {
		text, c.rows = c.rows.String()+text, nil
	}
	return c.app.print(text)
}

func flowCells(f *flows.Flow) []string {
	via, bytes := "", ""
	if f.Via.IsValid() {
		via = f.Via.String()
	}
	if f.Bytes > 0 {
		bytes = strconv.FormatUint(f.Bytes, 10)
	}
	return []string{
		f.From.String(), f.To.String(), endText(f.Protocol, f.Port), via, strconv.Itoa(f.Now), strconv.FormatUint(f.Seen, 10),
		f.Last.Local().Format("15:04:05"), bytes,
	}
}

// flowText returns a line for people that is no flow.
func flowText(l flows.Line) string {
	switch {
	case l.Connection != nil:
		n := l.Connection
		return fmt.Sprintf("%s  %s -> %s  %s", n.Time.Local().Format("2006-01-02 15:04:05.000"), n.From, n.To, endText(n.Protocol, n.Port))
	case l.Folded != nil:
		return fmt.Sprintf("%s of further flows%s, of which %d are there now", connectionsText(l.Folded.Seen), ofText(l.Folded), l.Folded.Now)
	case l.More != nil:
		return fmt.Sprintf("%s not shown, %d lost on the way", connectionsText(l.More.NotShown), l.More.Lost)
	case l.Missed > 0:
		return fmt.Sprintf("%d lines are missing, because they came faster than they were printed", l.Missed)
	case l.Totals != nil:
		return totalsText(l.Totals)
	}
	return "a line of a newer agent, which this patchbay does not know"
}

func ofText(f *flows.Folded) string {
	switch {
	case f.From != "":
		return " from " + f.From
	case f.To != "":
		return " from unknown addresses to " + f.To
	}
	return ""
}

// totalsText says what was seen, and what cannot have been.
func totalsText(t *flows.Totals) string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s at %s", connectionsText(uint64(t.Connections)), t.At.Local().Format("15:04:05"))
	if t.Next > 0 {
		fmt.Fprintf(&s, ", %d seen since %s in %d dumps, the last of which took %.0f ms; the next one comes %.0f s later",
			t.Seen, t.Since.Local().Format("2006-01-02 15:04:05"), t.Dumps, t.Seconds*1000, t.Next) //nolint:mnd // milliseconds
	}
	fmt.Fprintf(&s, ": %d flows", t.Flows)
	for _, n := range []struct {
		count uint64
		text  string
	}{
		{t.Folded, "of further flows"}, {t.Forgotten, "of flows that were forgotten"}, {uint64(t.Unmarked), "too many to know whether they are new"},
	} {
		if n.count > 0 {
			fmt.Fprintf(&s, ", %s %s", connectionsText(n.count), n.text)
		}
	}
	if !t.Counted && t.Connections > 0 {
		s.WriteString("; bytes are not known, because net.netfilter.nf_conntrack_acct is 0")
	}
	return s.String()
}

func connectionsText(n uint64) string {
	if n == 1 {
		return "1 connection"
	}
	return fmt.Sprintf("%d connections", n)
}
