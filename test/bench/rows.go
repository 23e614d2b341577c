// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"
)

// row is one line of the table: the reference's value, our value, and whether we keep the README's
// promise.
type row struct {
	What      string
	Reference string
	Ours      string
	Ratio     string
	Target    string
	Verdict   string
}

// These are the verdicts. inReserve: the line misses its target, but not its limit.
const (
	met        = "met"
	inReserve  = "within the limit"
	missed     = "**missed**"
	unmeasured = "not measured"
)

// line is a promise about the ratio value/against: it must not exceed target or, if more is set,
// must reach target. It must never pass limit, if that is set.
type line struct {
	what           string
	value, against float64
	target, limit  float64
	more           bool
	unit           func(float64) string
	promise        string

	// These are the times of which value and against are the medians, for their quartiles.
	values, againsts sample
}

func (l line) row() row {
	r := row{What: l.what, Target: l.promise, Reference: "-", Ours: "-", Ratio: "-", Verdict: unmeasured}
	if l.against > 0 {
		r.Reference = l.unit(l.against) + spread(l.againsts)
	}
	if l.value > 0 {
		r.Ours = l.unit(l.value) + spread(l.values)
	}
	if l.value <= 0 || l.against <= 0 {
		return r
	}
	ratio := l.value / l.against
	r.Ratio, r.Verdict = ratioText(ratio, l.more), l.judge(ratio)
	return r
}

func (l line) judge(ratio float64) string {
	switch {
	case l.more && ratio >= l.target, !l.more && ratio <= l.target:
		return met
	case l.limit > 0 && ratio <= l.limit:
		return inReserve
	}
	return missed
}

// ratioText writes a ratio in the words of the promises: "1/12 of" or "1.3 times".
func ratioText(ratio float64, more bool) string {
	if ratio < 0.8 && !more {
		return fmt.Sprintf("1/%.1f", 1/ratio)
	}
	return fmt.Sprintf("%.2fx", ratio)
}

// spread writes the first and the third quartile in milliseconds.
func spread(s sample) string {
	if len(s) == 0 {
		return ""
	}
	return fmt.Sprintf(" (%s-%s)", ms(s.wall(25)), ms(s.wall(75)))
}

func millis(ns float64) string { return fmt.Sprintf("%.2f ms", ns/1e6) }
func rate(pods float64) string { return fmt.Sprintf("%.0f pods/s", pods) }
func mega(b float64) string    { return fmt.Sprintf("%.1f MB", b/1e6) }

// rows returns the whole table. It includes lines that were not measured, so that no line can drop
// out unnoticed.
func (r *results) rows() []row {
	lines := append(r.latencyLines(), r.loadLines()...)
	lines = append(lines, r.costLines()...)
	rows := make([]row, 0, len(lines)+2)
	for _, l := range lines {
		rows = append(rows, l.row())
	}
	rows = append(rows, r.leakRow("left behind if the namespace was lost, once DEL and GC have run", "netns"))
	rows = append(rows, r.leakRow("left behind by kill -9 during ADD, once DEL and GC have run", "kill"))
	return append(rows, r.processRow())
}

// p50 returns the median of one verb of a chain.
func p50(s sample) float64 { return float64(s.wall(50)) }

// compare returns a promise about the medians of two samples.
func compare(what string, value, against sample, target float64, promise string) line {
	return line{
		what: what, value: p50(value), against: p50(against), values: value, againsts: against,
		target: target, unit: millis, promise: promise,
	}
}

func (r *results) latencyLines() []line {
	of := func(set, chain string) latency { return r.Latency[set+"/"+chain] }
	ref, our, one, floor := of(reference, "full"), of(ours, "full"), of(oursOne, "full"), of(bare, "full")
	was, wasOne := of(then, "full"), of(thenOne, "full")
	stays, staysOne := of(held, "full"), of(heldOne, "full")
	const noWorse = "no slower (<= 1.05x)"
	return []line{
		compare("full chain, ADD", our.Add, ref.Add, 1./8, "<= 1/8"),
		compare("full chain, DEL", our.Del, ref.Del, 1./6, "<= 1/6"),
		compare("full chain, DEL, against the floor", our.Del, floor.Del, 1.3, "<= 1.3x of one process that only deletes a veth, and two empty execs"),
		compare("full chain as `type: patchbay`, ADD", one.Add, ref.Add, 1./14, "<= 1/14"),
		compare("full chain as `type: patchbay`, DEL", one.Del, ref.Del, 1./8, "<= 1/8"),
		compare("full chain as `type: patchbay`, ADD, against the floor", one.Add, floor.Add, 2, "<= 2x of the kernel calls alone and one empty exec"),
		compare("bridge + host-local, ADD", of(ours, "bridge").Add, of(reference, "bridge").Add, 1/2.3, "<= 1/2.3"),
		compare("host-local alone, ADD", of(ours, "hl0").Add, of(reference, "hl0").Add, 0.8, "<= 0.8x"),
		compare("resident: full chain, ADD", stays.Add, ref.Add, 1./10, "<= 1/10"),
		compare("resident: full chain, DEL, against the floor", stays.Del, floor.Del, 1.2, "<= 1.2x"),
		compare("resident: `type: patchbay`, ADD", staysOne.Add, ref.Add, 1./18, "<= 1/18"),
		compare("resident: `type: patchbay`, ADD, against the floor", staysOne.Add, floor.Add, 1.6, "<= 1.6x"),
		compare("resident: bridge + host-local, ADD", of(held, "bridge").Add, of(reference, "bridge").Add, 1/3.2, "<= 1/3.2"),
		compare("full chain, ADD, against "+thenCommit, our.Add, was.Add, 1.05, noWorse),
		compare("full chain, DEL, against "+thenCommit, our.Del, was.Del, 1.05, noWorse),
		compare("`type: patchbay`, ADD, against "+thenCommit, one.Add, wasOne.Add, 1.05, noWorse),
		compare("bridge + host-local, ADD, against "+thenCommit, of(ours, "bridge").Add, of(then, "bridge").Add, 1.05, noWorse),
	}
}

func (r *results) loadLines() []line {
	ref, our, one := r.Bursts[reference+"/16"], r.Bursts[ours+"/16"], r.Bursts[oursOne+"/16"]
	burst := func(what string, value, against, target float64) line {
		return line{what: what, value: value, against: against, target: target, more: true, unit: rate, promise: fmt.Sprintf(">= %gx", target)}
	}
	was := r.Bursts[then+"/16"]
	stays := r.Bursts[held+"/16"]
	flat0, hl60k := r.Latency[ours+"/flat0"], r.Latency[ours+"/hl60k"]
	return []line{
		burst("16 callers, full chain, ADD", our.perSecond(our.Add), ref.perSecond(ref.Add), 5),
		burst("16 callers, full chain, DEL", our.perSecond(our.Del), ref.perSecond(ref.Del), 5),
		burst("16 callers, `type: patchbay`, ADD", one.perSecond(one.Add), ref.perSecond(ref.Add), 5),
		burst("16 callers, `type: patchbay`, DEL", one.perSecond(one.Del), ref.perSecond(ref.Del), 5),
		burst("16 callers, full chain, ADD, against "+thenCommit, our.perSecond(our.Add), was.perSecond(was.Add), 0.95),
		burst("resident: 16 callers, full chain, ADD, against "+thenCommit, stays.perSecond(stays.Add), was.perSecond(was.Add), 1.1),
		compare("host-local ADD at 60,000 reservations, against ours at 0", hl60k.Add, flat0.Add, 1.2, "flat (<= 1.2x of ours at 0)"),
		compare("host-local DEL at 60,000 reservations, against ours at 0", hl60k.Del, flat0.Del, 1.2, "flat (<= 1.2x of ours at 0)"),
		compare("ptp ADD with IPv6, against ours with IPv4", r.Latency[ours+"/ptp6"].Add, r.Latency[ours+"/ptp4"].Add, 1.3, "as IPv4 (<= 1.3x)"),
		compare("macvlan ADD with IPv6, against ours with IPv4", r.Latency[ours+"/macvlan6"].Add, r.Latency[ours+"/macvlan4"].Add, 1.3, "as IPv4 (<= 1.3x)"),
		compare("macvlan ADD with IPv6", r.Latency[ours+"/macvlan6"].Add, r.Latency[reference+"/macvlan6"].Add, 1./100, "no wait for duplicate detection (<= 1/100)"),
		r.growthLine("ADD with 5,000 other attachments: growth against that of the bare calls", ours, 1.3),
		r.growthLine("the same as `type: patchbay`", oursOne, 1.15),
	}
}

// growthLine compares how many times as long an ADD takes on a full node with the same of the bare
// calls: the kernel itself is slower with so many links.
func (r *results) growthLine(what, set string, target float64) line {
	return line{
		what: what, value: growthOf(r.Growth[set]), against: growthOf(r.Growth[bare]), target: target,
		unit: func(times float64) string { return fmt.Sprintf("%.2fx", times) }, promise: fmt.Sprintf("<= %gx", target),
	}
}

// growthOf returns the last ADD of a curve as a multiple of the first one, or 0.
func growthOf(points []point) float64 {
	first, last := ends(points)
	if len(first.Add) == 0 {
		return 0
	}
	return p50(last.Add) / p50(first.Add)
}

// ends returns the first and the last point of a curve with at least two points.
func ends(points []point) (first, last latency) {
	if len(points) < 2 {
		return first, last
	}
	return points[0].Cost, points[len(points)-1].Cost
}

func (r *results) costLines() []line {
	return []line{
		{what: "CPU of answering VERSION", value: float64(r.Version[ours].cpu()), against: float64(r.Version[reference].cpu()),
			target: 1, unit: millis, promise: "no more than the reference's loopback"},
		{what: "plugin directory", value: float64(r.Size[ours]), against: float64(r.Size[reference]),
			target: 10e6 / max(1, float64(r.Size[reference])), unit: mega, promise: "<= 10 MB"},
	}
}

func (r *results) leakRow(what, harm string) row {
	row := row{What: what, Target: "none", Reference: "-", Ours: "-", Ratio: "-", Verdict: unmeasured}
	if counts, ok := r.Leaks[reference+"/"+harm]; ok {
		row.Reference = countText(counts)
	}
	counts, ok := r.Leaks[ours+"/"+harm]
	if !ok {
		return row
	}
	row.Ours, row.Verdict = countText(counts), met
	for _, n := range counts {
		if n > 0 {
			row.Verdict = missed
		}
	}
	return row
}

func (r *results) processRow() row {
	row := row{What: "processes of one full chain, ADD / DEL", Target: "one for each plugin, no child processes", Reference: "-", Ours: "-", Ratio: "-", Verdict: unmeasured}
	total := func(set, verb string) (n int) {
		for _, k := range r.Processes[set+"/"+verb] {
			n += k
		}
		return n
	}
	row.Reference = fmt.Sprintf("%d / %d", total(reference, "add"), total(reference, "del"))
	add, del := total(ours, "add"), total(ours, "del")
	if add == 0 {
		return row
	}
	row.Ours = fmt.Sprintf("%d / %d", add, del)
	row.Verdict = missed
	if add <= 3 && del <= 3 {
		row.Verdict = met
	}
	return row
}

// ms formats a duration in milliseconds, for the detailed tables.
func ms(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d)/1e6) }
