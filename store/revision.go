// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"strconv"
	"strings"
)

// Follows reports whether r, of a List, belongs to the history of an earlier List and is
// not before it. If it does, missing objects were deleted. If not, that is unknown: the
// store lost its data, was restored from a backup, or is another one. Every revision
// follows the zero revision.
func (r Revision) Follows(earlier Revision) bool {
	now, history := r.parts()
	was, of := earlier.parts()
	return earlier == "" || r != "" && history == of && now >= was
}

// With returns the later one of r, of a List, and the revision of an event in the same
// history.
func (r Revision) With(event Revision) Revision {
	now, history := r.parts()
	next, _ := event.parts()
	if next <= now {
		return r
	}
	return InHistory(next, history)
}

// InHistory returns a revision in the form of the engines: the number of a change, and the
// name of its history.
func InHistory(number int64, history string) Revision {
	return Revision(strconv.FormatInt(number, 10) + "@" + history)
}

// parts splits a revision. One that no engine wrote is before all changes.
func (r Revision) parts() (number int64, history string) {
	text, history, _ := strings.Cut(string(r), "@")
	number, _ = strconv.ParseInt(text, 10, 64)
	return number, history
}
