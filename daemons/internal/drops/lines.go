// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package drops

import (
	"slices"

	"github.com/patchbay-net/patchbay/internal/drops"
)

// pending is how many lines wait for one client.
const pending = 1024

// lines keeps the last lines, and gives new ones to those that follow.
type lines struct {
	kept      []drops.Line // a ring, once it is full
	next      int          // where the next one is written in a full ring
	followers map[*follower]bool
}

// follower is a client that waits for new lines.
type follower struct {
	request drops.Request
	lines   chan drops.Line
	missed  uint64 // did not fit
}

// add keeps a line, and returns for how many followers there was no room.
func (l *lines) add(line drops.Line) (missed uint64) {
	if len(l.kept) < drops.Kept {
		l.kept = append(l.kept, line)
	} else {
		l.kept[l.next] = line
		l.next = (l.next + 1) % drops.Kept
	}
	for f := range l.followers {
		if !f.give(line) {
			missed++
		}
	}
	return missed
}

// give passes a line on, or counts it. It never waits: a client must not keep the reader from reading.
func (f *follower) give(line drops.Line) bool {
	if !line.Concerns(f.request) {
		return true
	}
	if f.missed > 0 {
		select {
		case f.lines <- drops.Line{Missed: f.missed}:
			f.missed = 0
		default:
		}
	}
	select {
	case f.lines <- line:
		return true
	default:
		f.missed++
		return false
	}
}

// follow adds a follower.
func (l *lines) follow(r drops.Request) *follower {
	f := &follower{request: r, lines: make(chan drops.Line, pending)}
	if l.followers == nil {
		l.followers = map[*follower]bool{}
	}
	l.followers[f] = true
	return f
}

// former returns the kept lines for a request, the oldest first.
func (l *lines) former(r drops.Request) (out []drops.Line) {
	for _, line := range slices.Concat(l.kept[l.next:], l.kept[:l.next]) {
		if line.Concerns(r) {
			out = append(out, line)
		}
	}
	if r.Last > 0 {
		out = out[max(len(out)-r.Last, 0):]
	}
	return out
}
