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
}

func (l line) row() row {
	r := row{What: l.what, Target: l.promise, Reference: "-", Ours: "-", Ratio: "-", Verdict: unmeasured}
	if l.against > 0 {
		r.Reference = l.unit(l.against)
	}
	if l.value > 0 {
		r.Ours = l.unit(l.value)
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

func (r *results) latencyLines() []line {
	ref, our, one := r.Latency[reference+"/full"], r.Latency[ours+"/full"], r.Latency[oursOne+"/full"]
	floor, plainRef, plainOur := r.Latency[bare+"/full"], r.Latency[reference+"/bridge"], r.Latency[ours+"/bridge"]
	ms := millis
	return []line{
		{what: "full chain, ADD", value: p50(our.Add), against: p50(ref.Add), target: 1. / 10, limit: 1. / 8, unit: ms, promise: "<= 1/10, never worse than 1/8"},
		{what: "full chain, DEL", value: p50(our.Del), against: p50(ref.Del), target: 1. / 6, unit: ms, promise: "<= 1/6"},
		{what: "full chain, DEL, against the floor", value: p50(our.Del), against: p50(floor.Del), target: 1.5, unit: ms, promise: "<= 1.5x of one process that only deletes a veth, and two empty execs"},
		{what: "full chain as `type: patchbay`, ADD", value: p50(one.Add), against: p50(ref.Add), target: 1. / 20, unit: ms, promise: "<= 1/20"},
		{what: "full chain as `type: patchbay`, DEL", value: p50(one.Del), against: p50(ref.Del), target: 1. / 8, unit: ms, promise: "<= 1/8"},
		{what: "full chain as `type: patchbay`, ADD, against the floor", value: p50(one.Add), against: p50(floor.Add), target: 2, unit: ms, promise: "<= 2x of the kernel calls alone and one empty exec"},
		{what: "bridge + host-local, ADD", value: p50(plainOur.Add), against: p50(plainRef.Add), target: 1. / 3, unit: ms, promise: "<= 1/3"},
	}
}

func (r *results) loadLines() []line {
	ref, our, one := r.Bursts[reference+"/16"], r.Bursts[ours+"/16"], r.Bursts[oursOne+"/16"]
	burst := func(what string, value, against float64) line {
		return line{what: what, value: value, against: against, target: 5, more: true, unit: rate, promise: ">= 5x"}
	}
	same := func(what string, value, against sample, target float64, promise string) line {
		return line{what: what, value: p50(value), against: p50(against), target: target, unit: millis, promise: promise}
	}
	hl0, hl60k := r.Latency[ours+"/hl0"], r.Latency[ours+"/hl60k"]
	first, last := ends(r.Growth[ours])
	firstOne, lastOne := ends(r.Growth[oursOne])
	return []line{
		burst("16 callers, full chain, ADD", our.perSecond(our.Add), ref.perSecond(ref.Add)),
		burst("16 callers, full chain, DEL", our.perSecond(our.Del), ref.perSecond(ref.Del)),
		burst("16 callers, `type: patchbay`, ADD", one.perSecond(one.Add), ref.perSecond(ref.Add)),
		burst("16 callers, `type: patchbay`, DEL", one.perSecond(one.Del), ref.perSecond(ref.Del)),
		same("host-local ADD at 60,000 reservations, against ours at 0", hl60k.Add, hl0.Add, 1.2, "flat (<= 1.2x of ours at 0)"),
		same("host-local DEL at 60,000 reservations, against ours at 0", hl60k.Del, hl0.Del, 1.2, "flat (<= 1.2x of ours at 0)"),
		same("ptp ADD with IPv6, against ours with IPv4", r.Latency[ours+"/ptp6"].Add, r.Latency[ours+"/ptp4"].Add, 1.3, "as IPv4 (<= 1.3x)"),
		same("macvlan ADD with IPv6, against ours with IPv4", r.Latency[ours+"/macvlan6"].Add, r.Latency[ours+"/macvlan4"].Add, 1.3, "as IPv4 (<= 1.3x)"),
		{what: "macvlan ADD with IPv6", value: p50(r.Latency[ours+"/macvlan6"].Add), against: p50(r.Latency[reference+"/macvlan6"].Add), target: 1. / 100, unit: millis, promise: "no wait for duplicate detection (<= 1/100)"},
		same("ADD with 5,000 other attachments, against ours with none", last.Add, first.Add, 1.3, "<= 1.3x"),
		same("the same as `type: patchbay`", lastOne.Add, firstOne.Add, 1.3, "<= 1.3x"),
	}
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
