// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"strconv"
	"strings"
)

// Follows says whether r, of a List, is of the same history as one of an earlier
// List, and not before it. Then what is missing now was removed. Else nobody knows:
// the store lost its data, was restored from a backup, or is another one. Every
// revision follows the zero revision.
func (r Revision) Follows(earlier Revision) bool {
	now, history := r.parts()
	was, of := earlier.parts()
	return earlier == "" || r != "" && history == of && now >= was
}

// With is the later one of r, of a List, and the revision of an event in the same
// history.
func (r Revision) With(event Revision) Revision {
	now, history := r.parts()
	next, _ := event.parts()
	if next <= now {
		return r
	}
	return InHistory(next, history)
}

// InHistory is a revision as engines write it: the number of a change, and the
// name of the history that it is of.
func InHistory(number int64, history string) Revision {
	return Revision(strconv.FormatInt(number, 10) + "@" + history)
}

// parts takes a revision apart. What no engine wrote is before all changes.
func (r Revision) parts() (number int64, history string) {
	text, history, _ := strings.Cut(string(r), "@")
	number, _ = strconv.ParseInt(text, 10, 64)
	return number, history
}
