// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"time"
)

// The picture has the times of changes on the left, and the agent's memory on the right.
const (
	panelWidth, panelHeight = 340, 240
	marginLeft, marginTop   = 64, 48
	panelGap                = 80
)

// svgHead: the style follows the reader's colour scheme.
const svgHead = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="%s">
<style>
text{font:12px system-ui,sans-serif;fill:#444}.t{font-weight:600;font-size:14px;fill:#222}.g{stroke:#ddd}
.c0{stroke:#b4552d;fill:#b4552d}.c1{stroke:#2b6cb0;fill:#2b6cb0}.c2{stroke:#2f855a;fill:#2f855a}.p99{stroke-dasharray:5 4}
polyline{fill:none!important;stroke-width:2}
@media (prefers-color-scheme:dark){text{fill:#bbb}.t{fill:#eee}.g{stroke:#444}.c0{stroke:#e08a63;fill:#e08a63}.c1{stroke:#7ab3ef;fill:#7ab3ef}.c2{stroke:#6fcf97;fill:#6fcf97}}
</style>
`

// axes is one set of axes, which begin at 0.
type axes struct {
	left   int
	title  string
	unit   string
	lastX  float64
	lastY  float64
	values []beside
}

func (a axes) at(x, y float64) (float64, float64) {
	return float64(a.left) + panelWidth*x/a.lastX, marginTop + panelHeight*(1-y/a.lastY)
}

// policySVG draws what grows with the number of policies.
func policySVG(all []beside) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, svgHead, marginLeft+2*panelWidth+panelGap+40, marginTop+panelHeight+96, "Time of a change and memory of the agent, by the number of policies")
	last := 1.0
	slowest, largest := 1.0, 1.0
	for _, one := range all {
		last, largest = max(last, float64(one.policies)), max(largest, one.rss)
		for _, kind := range changeKinds {
			slowest = max(slowest, millis(one.p99[kind]))
		}
	}
	left := axes{marginLeft, "change in the API to the first packet", "ms", last, 1.1 * slowest, all}
	left.draw(&b)
	for i, kind := range changeKinds {
		left.curve(&b, fmt.Sprintf("c%d", i), func(one beside) float64 { return millis(one.p50[kind]) })
		left.curve(&b, fmt.Sprintf("c%d p99", i), func(one beside) float64 { return millis(one.p99[kind]) })
		y := marginTop + panelHeight + 44 + 18*i
		fmt.Fprintf(&b, "<circle class=\"c%d\" r=\"4\" cx=\"%d\" cy=\"%d\"/><text x=\"%d\" y=\"%d\">%s: p50, and dashed p99</text>\n", i, marginLeft, y-4, marginLeft+10, y, kind)
	}
	right := axes{marginLeft + panelWidth + panelGap, "resident memory of the agent", "MB", last, 1.1 * largest, all}
	right.draw(&b)
	right.curve(&b, "c1", func(one beside) float64 { return one.rss })
	fmt.Fprintf(&b, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">network policies</text>\n</svg>\n", right.left+panelWidth, marginTop+panelHeight+44)
	return b.Bytes()
}

func millis(d time.Duration) float64 { return float64(d) / 1e6 }

func (a axes) draw(b *bytes.Buffer) {
	fmt.Fprintf(b, "<text class=\"t\" x=\"%d\" y=\"%d\">%s</text>\n", a.left, marginTop-16, a.title)
	for i := range 5 {
		value := a.lastY * float64(i) / 4
		_, y := a.at(0, value)
		fmt.Fprintf(b, "<line class=\"g\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.0f %s</text>\n",
			a.left, a.left+panelWidth, y, y, a.left-6, y+4, value, a.unit)
	}
	for _, one := range a.values {
		x, _ := a.at(float64(one.policies), 0)
		fmt.Fprintf(b, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%d</text>\n", x, marginTop+panelHeight+18, one.policies)
	}
}

func (a axes) curve(b *bytes.Buffer, class string, value func(beside) float64) {
	fmt.Fprintf(b, "<polyline class=\"%s\" points=\"", class)
	for _, one := range a.values {
		x, y := a.at(float64(one.policies), value(one))
		fmt.Fprintf(b, "%.1f,%.1f ", x, y)
	}
	b.WriteString("\"/>\n")
}
