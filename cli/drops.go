// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/patchbay-net/patchbay/internal/drops"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
	"github.com/patchbay-net/patchbay/internal/sight"
)

const dropsLong = `Print the packets that the network policies of this node dropped: who sent them
to whom, to which port, and which policy and rule decided. Also those that a pod
sent from an address of another.

Each flow is told once in ten seconds, at most 10 a second of a pod and 100 of
the node, and always if nothing was told of the pod for ten seconds. All packets
are counted, and the last line says how many were not shown. A packet that
passes costs nothing for it.

The agent of the node (patchbayd node) keeps the last 10,000 lines in memory. If
it does not run, the kernel's counters are printed, and the exit status is 1.

  patchbay drops --pod shop/db
  patchbay drops -f --json`

type dropsCommand struct {
	app    *app
	Follow bool   `long:"follow" short:"f" description:"go on with new lines until interrupted"`
	Pod    string `long:"pod" value-name:"NAMESPACE/POD" description:"only packets from or to this pod, or this address"`
	Last   int    `long:"last" short:"n" value-name:"LINES" default:"100" description:"how many former lines to print at most; 0: all"`
	JSON   bool   `long:"json" description:"print a JSON object for each line"`
}

// Execute prints lines until the agent has said all, or until an interrupt.
func (c *dropsCommand) Execute([]string) error {
	if err := needRoot("drops"); err != nil {
		return err
	}
	if c.Last < 0 {
		return hinted(fmt.Errorf("--last is %d: it must be 0 or more", c.Last), "patchbay drops --last 20")
	}
	err := sight.Ask(c.app.ctx, drops.Socket(c.app.paths.Run), drops.Request{Follow: c.Follow, Last: c.Last, End: c.Pod}, c.print)
	if errors.Is(err, sight.ErrDial) {
		return errors.Join(c.counters(), hinted(err, "the agent of a Kubernetes node is patchbayd node; lines above this, if there are any, are the kernel's counters"))
	}
	return err
}

// tell prints a line of the agent as JSON, or its error as a remark, because that is for people.
func (a *app) tell(asJSON bool, line any, problem string) error {
	if !asJSON {
		a.remark("%s", printable(problem))
		return nil
	}
	b, err := json.Marshal(line)
	if err != nil {
		return err
	}
	return a.print(string(b) + "\n")
}

// print prints one line.
func (c *dropsCommand) print(l drops.Line) error {
	if c.JSON || l.Error != "" {
		return c.app.tell(c.JSON, l, l.Error)
	}
	return c.app.print(printable(dropText(l)) + "\n")
}

// counters prints what the kernel has counted.
func (c *dropsCommand) counters() error {
	s := c.app.session()
	defer s.Close()
	list, err := enforce.Counts(kernel.OfSession(s).NFT)
	for _, n := range list {
		if n.Packets > 0 {
			err = errors.Join(err, c.print(drops.Line{More: &drops.More{Direction: n.Direction.String(), Cause: string(n.Cause), Packets: n.Packets}}))
		}
	}
	return err
}

// dropText returns a line for people.
func dropText(l drops.Line) string {
	switch {
	case l.Drop != nil:
		d := l.Drop
		return fmt.Sprintf("%s  %s -> %s  %s  %s: %s", d.Time.Local().Format("2006-01-02 15:04:05.000"), d.From, d.To, endText(d.Protocol, d.Port), d.Direction, d.Reason)
	case l.More != nil:
		return fmt.Sprintf("%s not shown: %s, %s", packetsText(l.More.Packets), l.More.Direction, l.More.Cause)
	case l.Missed > 0:
		return fmt.Sprintf("%d lines are missing, because they came faster than they were printed", l.Missed)
	case l.Totals != nil:
		t := l.Totals
		return fmt.Sprintf("%s of the node dropped since %s: %d shown, %d lost on the way, %d not shown",
			packetsText(t.Counted), t.Since.Local().Format("2006-01-02 15:04:05"), t.Shown, t.Lost, t.NotShown)
	}
	return "a line of a newer agent, which this patchbay does not know"
}

func packetsText(n uint64) string {
	if n == 1 {
		return "1 packet"
	}
	return fmt.Sprintf("%d packets", n)
}

// endText returns "tcp 80", or "icmp type 8".
func endText(protocol string, port uint16) string {
	switch {
	case strings.HasPrefix(protocol, "icmp"):
		return fmt.Sprintf("%s type %d", protocol, port)
	case port == 0:
		return protocol
	}
	return fmt.Sprintf("%s %d", protocol, port)
}

// printable removes what a terminal would not print: control characters, and those that change the direction of text.
// Names come from users of the cluster.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if strconv.IsPrint(r) {
			return r
		}
		return -1
	}, s)
}
