// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netmap

import "slices"

// These are sizes of the drawing, in its own units, which are pixels where nothing scales it.
const (
	columns     = 4
	columnWidth = 300
	gap         = 16 // between boxes, and between a frame and what is in it
	line        = 17 // height of a line of text
	headHeight  = 26 // of a frame's title
	pad         = 8  // between a box and its text
	hostLines   = 3
)

// rect is a place in the drawing.
type rect struct{ X, Y, W, H int }

// box is a network in the drawing. Network is its index in the map.
type box struct {
	rect
	Network int
}

// frame is what networks share: a bridge, a parent interface, or only the kind of their plugin.
type frame struct {
	rect
	Title string
	Boxes []box
}

// plan says where everything is.
type plan struct {
	W, H   int
	Node   rect
	Frames []frame
	Others rect // the frame of the other hosts; empty if there are none
	Hosts  []rect
}

// arrange puts each frame into the column that is shortest so far. With rows, a box has a line for each attachment.
func arrange(m *Map, rows bool) (p plan) {
	var bottom [columns]int
	for i := range bottom {
		bottom[i] = gap + headHeight
	}
	for _, f := range frames(m) {
		c := shortest(bottom[:])
		f.place(m, gap*2+c*(columnWidth+gap), bottom[c], rows)
		bottom[c] = f.Y + f.H + gap
		p.Frames = append(p.Frames, f)
	}
	p.W = columns*(columnWidth+gap) + 3*gap
	p.Node = rect{gap, gap / 2, p.W - 2*gap, slices.Max(bottom[:]) - gap/2}
	p.hosts(len(m.Hosts))
	return p
}

// hosts puts the other machines into a frame below the node.
func (p *plan) hosts(n int) {
	p.H = p.Node.Y + p.Node.H + gap/2
	if n == 0 {
		return
	}
	top := p.Node.Y + p.Node.H + 2*gap
	const height = hostLines*line + pad
	for i := range n {
		p.Hosts = append(p.Hosts, rect{gap*2 + i%columns*(columnWidth+gap), top + headHeight + i/columns*(height+gap), columnWidth, height})
	}
	last := p.Hosts[n-1]
	p.Others = rect{gap, top, p.Node.W, last.Y + last.H + gap - top}
	p.H = p.Others.Y + p.Others.H + gap/2
}

func shortest(bottom []int) (column int) {
	for i, y := range bottom {
		if y < bottom[column] {
			column = i
		}
	}
	return column
}

// frames groups the networks by what they share, in the order of the map.
func frames(m *Map) (list []frame) {
	for i, n := range m.Networks {
		title := n.title()
		at := slices.IndexFunc(list, func(f frame) bool { return f.Title == title })
		if at < 0 {
			at = len(list)
			list = append(list, frame{Title: title})
		}
		list[at].Boxes = append(list[at].Boxes, box{Network: i})
	}
	return list
}

// title names what a network shares with others on the host.
func (n *Network) title() string {
	switch {
	case n.Driver == "":
		return "configuration not known"
	case n.Link == "":
		return n.Driver
	case n.Driver == "bridge":
		return "bridge " + n.Link
	}
	return n.Driver + " on " + n.Link
}

// place gives the frame and the boxes in it their places.
func (f *frame) place(m *Map, x, y int, rows bool) {
	f.rect = rect{x, y, columnWidth, headHeight}
	for i := range f.Boxes {
		n := &m.Networks[f.Boxes[i].Network]
		lines := 1
		for _, more := range [...]bool{len(n.Subnets) > 0, n.state().class() != ""} {
			if more {
				lines++
			}
		}
		if rows {
			lines += len(n.Attachments)
		}
		f.Boxes[i].rect = rect{x + pad, y + f.H, columnWidth - 2*pad, lines*line + pad}
		f.H += f.Boxes[i].H + pad
	}
}
