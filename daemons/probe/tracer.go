// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package probe does the work of `patchbay trace`: where a packet between two ends ends, and what mends it.
//
// First it asks the kernel's routing tables in each namespace, without a packet. Then it sends one real packet from the
// source's namespace by a raw socket, and follows it and its answer by nftrace (nft.Trace) through the namespaces of the
// source, of the host and of the target. The kernel tells each rule that the packet meets, and how far it came. If it ends
// where no rule is, the state of the kernel at that place says why: routes, links, neighbours.
package probe

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/trace"
	"github.com/patchbay-net/patchbay/netns"
)

// Host is the node.
type Host struct {
	Proc string        // /proc
	Wait time.Duration // for an answer
}

// place is a namespace through which the packet may go.
type place struct {
	name string
	ns   string // its path; "" for the host
	conn *nl.Conn

	tables map[string]*nft.Table // that were read, by family and name
}

// tracer answers one question.
type tracer struct {
	Host
	trace.Question
	node     *place   // the host
	places   []*place // in the order in which the packet comes there
	hairpin  bool     // the host sends the packet back to its source
	report   *trace.Report
	expected *trace.Finding // by the evaluation
}

// Trace answers a question. It leaves nothing in the kernel.
func (h Host) Trace(q trace.Question) (r *trace.Report, err error) {
	t := &tracer{Host: h, Question: q, report: &trace.Report{From: q.From.Word, To: q.To.Word, Port: q.Service(), Evaluation: []trace.Expectation{}, Steps: []trace.Step{}}}
	defer t.close()
	if err := t.enter(); err != nil {
		return nil, err
	}
	t.evaluate()
	if err := t.probe(); err != nil {
		return nil, err
	}
	t.compare()
	return t.report, nil
}

// enter opens the places.
func (t *tracer) enter() error {
	conn, err := nl.Host(t.Proc)
	if err != nil {
		return err
	}
	t.node = &place{name: "the host", conn: conn}
	if t.From.Container() {
		if err := t.add(t.From); err != nil {
			return err
		}
	}
	switch {
	case t.To.Container() && t.To.NS == t.From.NS: // the packet does not leave the container
		return nil
	case t.To.Container():
		t.places = append(t.places, t.node)
		return t.add(t.To)
	}
	t.places = append(t.places, t.node)
	return nil
}

func (t *tracer) add(e trace.End) error {
	ns, err := netns.Open(e.NS)
	if err != nil {
		return fmt.Errorf("enter %s: %w", e.Word, err)
	}
	conn, err := nl.In(ns, t.Proc)
	if err != nil {
		return err
	}
	t.places = append(t.places, &place{name: e.Word, ns: e.NS, conn: conn})
	return nil
}

func (t *tracer) close() {
	for _, p := range t.places {
		if p != t.node {
			p.conn.Close()
		}
	}
	if t.node != nil {
		t.node.conn.Close()
	}
}

// source returns the place from which the packet is sent.
func (t *tracer) source() *place { return t.places[0] }

// target returns the place of a local target, or nil.
func (t *tracer) target() *place {
	switch {
	case t.hairpin:
		return t.source()
	case !t.To.Local || t.Translated:
		return nil
	}
	return t.places[len(t.places)-1]
}

// host returns the place of the host.
func (t *tracer) host() *place { return t.node }

// socket opens a socket in the namespace.
func (p *place) socket(family, kind, protocol int) (int, error) {
	if p.conn.NS == nil {
		return unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
	}
	return p.conn.NS.Socket(family, kind, protocol)
}

// inside returns a command that is run in the namespace.
func (p *place) inside(command string) string {
	if p.ns == "" {
		return command
	}
	return "nsenter --net=" + p.ns + " " + command
}

// link returns the name of a link.
func (p *place) link(index int) string {
	if l, err := p.conn.LinkAt(index); err == nil {
		return l.Attrs().Name
	}
	return fmt.Sprintf("link %d", index)
}

func finding(where string, cause trace.Cause, text, fix string) *trace.Finding {
	return &trace.Finding{Where: where, Cause: cause, Text: text, Fix: fix}
}

// compare reports a disagreement of the evaluation and the probe.
func (t *tracer) compare() {
	r := t.report
	switch {
	case t.expected != nil && (r.Verdict == trace.Arrives || r.Verdict == trace.Refused):
		r.Disagreement = fmt.Sprintf("by the evaluation the packet ends in %s (%s), but it arrived: somebody changed the state meanwhile, or patchbay is wrong", t.expected.Where, t.expected.Text)
	case t.expected == nil && r.Verdict == trace.Ends && r.Finding.Cause.Evaluated():
		r.Disagreement = "by the evaluation the packet passes: somebody changed the state meanwhile, or patchbay is wrong"
	}
}
