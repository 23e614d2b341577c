// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netmap

import (
	_ "embed"
	"strings"
)

// colours has the colours of both documents, for light and dark screens.
//
//go:embed colours.css
var colours string

//go:embed drawing.css
var drawingStyle string

// SVG returns the map as a drawing with every attachment: a document of its own, for a browser or a wiki.
func SVG(m *Map) string {
	w := &writer{}
	p := arrange(m, true)
	w.put(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d"><title>Networks of %s</title><style>%s%s</style>`+"\n",
		p.W, p.H, p.W, p.H, m.Node, markup(colours), markup(drawingStyle))
	w.put(`<rect class="paper" width="%d" height="%d"/>`+"\n", p.W, p.H)
	w.draw(m, p, false)
	w.put("</svg>\n")
	return w.String()
}

// draw draws the node, its networks and the other hosts. With links, a network leads to its table; without, it lists its
// attachments.
func (w *writer) draw(m *Map, p plan, links bool) {
	w.rect("node", p.Node)
	w.text("name", p.Node.X+pad, p.Node.Y+line, "node "+m.Node, p.Node.W-2*pad)
	for _, f := range p.Frames {
		w.rect("frame", f.rect)
		w.text("dim", f.X+pad, f.Y+line, f.Title, f.W-2*pad)
		for _, b := range f.Boxes {
			w.box(m, b, links)
		}
	}
	w.hosts(m, p)
}

// hosts draws the other machines, with one line for the routes to all of them.
func (w *writer) hosts(m *Map, p plan) {
	if len(m.Hosts) == 0 {
		return
	}
	w.put(`<path d="M%d %dV%d"/>`, p.W/2, p.Node.Y+p.Node.H, p.Others.Y)
	w.rect("node", p.Others)
	w.text("name", p.Others.X+pad, p.Others.Y+line, "other hosts, by their routes", p.Others.W-2*pad)
	for i, h := range m.Hosts {
		r := p.Hosts[i]
		w.rect("frame", r)
		w.text("name", r.X+pad, r.Y+line, h.Address, r.W-2*pad)
		w.text("", r.X+pad, r.Y+2*line, strings.Join(h.Blocks, " "), r.W-2*pad)
		w.text("dim", r.X+pad, r.Y+3*line, "by "+h.Link, r.W-2*pad)
	}
}

// box draws a network.
func (w *writer) box(m *Map, b box, links bool) {
	n := &m.Networks[b.Network]
	s := n.state()
	if links {
		w.put(`<a href="#n%d">`, b.Network)
		defer w.put("</a>\n")
	}
	w.rect("box "+s.class(), b.rect)
	x, y, width := b.X+pad, b.Y, b.W-2*pad
	row := func(class, text string) {
		y += line
		w.text(class, x, y, text, width)
	}
	row("name", n.Name+" ("+counted(len(n.Attachments), "attachment")+")")
	if len(n.Subnets) > 0 {
		row("", strings.Join(n.Subnets, " "))
	}
	if text := s.text(); text != "" {
		row(s.class(), text)
	}
	for i := 0; !links && i < len(n.Attachments); i++ {
		y += line
		w.row(&n.Attachments[i], x, y, width)
	}
}

// row is an attachment as a line of the drawing. The tooltip says what is wrong.
func (w *writer) row(a *Attached, x, y, width int) {
	text := a.row()
	short, cut := fitted(text, width)
	tip := ""
	if cut || len(a.Findings) > 0 {
		tip = text
	}
	for _, f := range a.Findings {
		tip += "; " + oneLine(f.What)
		if f.Fix != "" {
			tip += "; do: " + oneLine(f.Fix)
		}
	}
	w.tipped(a.state().class(), x, y, short, tip)
}

// row is the text of an attachment's line.
func (a *Attached) row() string {
	words := []string{a.title()}
	if a.state().broken > 0 {
		words = append(words, "⚠ broken")
	}
	for _, addr := range a.Addresses {
		addr, _, _ = strings.Cut(addr, "/")
		words = append(words, addr)
	}
	return strings.Join(append(words, a.Ports...), " ")
}

func (w *writer) rect(class string, r rect) {
	w.put(`<rect class="%s" x="%d" y="%d" width="%d" height="%d" rx="6"/>`, strings.TrimSpace(class), r.X, r.Y, r.W, r.H)
}

// text writes a line that is at most width wide. If it does not fit, the tooltip has all of it.
func (w *writer) text(class string, x, y int, s string, width int) {
	short, cut := fitted(s, width)
	tip := ""
	if cut {
		tip = s
	}
	w.tipped(class, x, y, short, tip)
}

// tipped writes a line of text with a tooltip, unless that is empty.
func (w *writer) tipped(class string, x, y int, s, tip string) {
	w.put(`<text x="%d" y="%d"`, x, y)
	if class != "" {
		w.put(` class="%s"`, class)
	}
	w.put(">%s", s)
	if tip != "" {
		w.put("<title>%s</title>", tip)
	}
	w.put("</text>\n")
}

// tenths is the width of a character of the drawing's font, which has one width for all, in tenths of a unit. It is
// rounded up.
const tenths = 73

// fitted cuts a text to a width.
func fitted(s string, width int) (short string, cut bool) {
	used := 0
	for i, r := range s {
		if used += cells(r) * tenths; used > width*10 {
			return shorter(s[:i]) + "…", true
		}
	}
	return s, false
}

// shorter makes room for the ellipsis.
func shorter(s string) string {
	if r := []rune(s); len(r) > 0 {
		return string(r[:len(r)-1])
	}
	return s
}

// cells is how many columns a character takes. From Hangul on, many take two.
func cells(r rune) int {
	const wide = 0x1100
	if r >= wide && (r < 0x2000 || r >= 0x2e80) {
		return 2
	}
	return 1
}
