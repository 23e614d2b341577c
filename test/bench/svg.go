// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"math"
	"time"
)

// The picture has ADD on the left and DEL on the right. Its time axis is logarithmic, because the
// curves differ by a factor of ten and more.
const (
	panelWidth, panelHeight = 380, 260
	marginLeft, marginTop   = 64, 48
	panelGap                = 80
	minMillis, maxMillis    = 1, 1000
)

// The style follows the reader's colour scheme.
const svgHead = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="%s">
<style>
text{font:12px system-ui,sans-serif;fill:#444}.t{font-weight:600;font-size:14px;fill:#222}
.g{stroke:#ddd}.reference{stroke:#b4552d;fill:#b4552d}.ours{stroke:#2b6cb0;fill:#2b6cb0}.one{stroke:#2f855a;fill:#2f855a}
polyline{fill:none!important;stroke-width:2}text.reference,text.ours,text.one{stroke:none}
@media (prefers-color-scheme:dark){text{fill:#bbb}.t{fill:#eee}.g{stroke:#444}.reference{stroke:#e08a63;fill:#e08a63}.ours{stroke:#7ab3ef;fill:#7ab3ef}.one{stroke:#6fcf97;fill:#6fcf97}}
</style>
`

// growthSVG draws the growth curves.
func growthSVG(growth map[string][]point) []byte {
	var b bytes.Buffer
	width := marginLeft + 2*panelWidth + panelGap + 24
	fmt.Fprintf(&b, svgHead, width, marginTop+panelHeight+70, "Time of ADD and DEL against the number of attachments standing")
	last := 1
	for _, points := range growth {
		for _, p := range points {
			last = max(last, p.Standing)
		}
	}
	left := marginLeft
	drawPanel(&b, panel{left, "ADD", last, func(l latency) time.Duration { return l.Add.wall(50) }}, growth)
	left += panelWidth + panelGap
	drawPanel(&b, panel{left, "DEL", last, func(l latency) time.Duration { return l.Del.wall(50) }}, growth)
	drawLegend(&b)
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// panel is one set of axes.
type panel struct {
	left  int
	title string
	last  int // the largest number of attachments
	value func(latency) time.Duration
}

func (p panel) x(standing int) float64 {
	return float64(p.left) + float64(panelWidth)*float64(standing)/float64(p.last)
}

func (p panel) y(millis float64) float64 {
	millis = min(max(millis, minMillis), maxMillis)
	part := math.Log10(millis/minMillis) / math.Log10(maxMillis/minMillis)
	return marginTop + panelHeight*(1-part)
}

func drawPanel(b *bytes.Buffer, p panel, growth map[string][]point) {
	fmt.Fprintf(b, "<text class=\"t\" x=\"%d\" y=\"%d\">%s, full chain over ptp</text>\n", p.left, marginTop-16, p.title)
	for v := float64(minMillis); v <= maxMillis; v *= 10 {
		fmt.Fprintf(b, "<line class=\"g\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>", p.left, p.left+panelWidth, p.y(v), p.y(v))
		fmt.Fprintf(b, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g ms</text>\n", p.left-6, p.y(v)+4, v)
	}
	for i := range 6 {
		n := p.last * i / 5
		fmt.Fprintf(b, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%d</text>\n", p.x(n), marginTop+panelHeight+18, n)
	}
	for _, set := range []string{reference, ours, oursOne} {
		drawCurve(b, p, set, growth[set])
	}
}

func drawCurve(b *bytes.Buffer, p panel, set string, points []point) {
	if len(points) == 0 {
		return
	}
	fmt.Fprintf(b, "<polyline class=\"%s\" points=\"", set)
	for _, pt := range points {
		fmt.Fprintf(b, "%.1f,%.1f ", p.x(pt.Standing), p.y(float64(p.value(pt.Cost))/1e6))
	}
	b.WriteString("\"/>\n")
	for _, pt := range points {
		fmt.Fprintf(b, "<circle class=\"%s\" r=\"2.5\" cx=\"%.1f\" cy=\"%.1f\"/>", set, p.x(pt.Standing), p.y(float64(p.value(pt.Cost))/1e6))
	}
	b.WriteString("\n")
}

func drawLegend(b *bytes.Buffer) {
	y := marginTop + panelHeight + 48
	for i, entry := range [...]struct{ set, text string }{
		{reference, "reference plugins, iptables-nft"}, {ours, "Patchbay"}, {oursOne, "Patchbay, type: patchbay"},
	} {
		x := marginLeft + i*230
		fmt.Fprintf(b, "<circle class=\"%s\" r=\"4\" cx=\"%d\" cy=\"%d\"/><text x=\"%d\" y=\"%d\">%s</text>\n", entry.set, x, y-4, x+10, y, entry.text)
	}
	fmt.Fprintf(b, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">attachments standing</text>\n", marginLeft+2*panelWidth+panelGap, y)
}
