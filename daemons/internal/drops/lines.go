// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package drops

import (
	"slices"

	"github.com/patchbay-net/patchbay/daemons/internal/answer"
	"github.com/patchbay-net/patchbay/internal/drops"
)

// lines keeps the last lines, and gives new ones to those that follow.
type lines struct {
	kept      []drops.Line // a ring, once it is full
	next      int          // where the next one is written in a full ring
	followers map[*follower]bool
}

// follower is a client that waits for new lines.
type follower struct {
	request drops.Request
	queue   *answer.Queue[drops.Line]
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
		if line.Concerns(f.request) && !f.queue.Give(line) {
			missed++
		}
	}
	return missed
}

// follow adds a follower.
func (l *lines) follow(r drops.Request) *follower {
	f := &follower{r, answer.NewQueue(func(missed uint64) drops.Line { return drops.Line{Missed: missed} })}
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
