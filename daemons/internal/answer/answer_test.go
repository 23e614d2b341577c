// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package answer

import "testing"

// A slow client loses lines, and is told how many before the next line that it gets.
func TestQueue(t *testing.T) {
	q := NewQueue(func(missed uint64) int { return -int(missed) })
	refused := 0
	for i := range Pending + 5 {
		if !q.Give(i + 1) {
			refused++
		}
	}
	if refused != 5 {
		t.Errorf("%d lines did not fit, want 5", refused)
	}
	<-q.lines
	<-q.lines
	if !q.Give(9999) {
		t.Error("there was room for one line")
	}
	for range Pending - 2 {
		<-q.lines
	}
	if gap, line := <-q.lines, <-q.lines; gap != -5 || line != 9999 {
		t.Errorf("got %d and %d, want -5 and 9999", gap, line)
	}
}
