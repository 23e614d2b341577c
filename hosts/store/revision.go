// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"strconv"
	"strings"
)

// At returns the revision of the n-th change, of an engine that counts its changes.
func At(n int64) Revision { return Revision(strconv.FormatInt(n, 10)) }

// InHistory returns the revision of a List: the number of the newest change, and the name
// of its history.
func InHistory(n int64, history string) Revision { return At(n) + Revision("@"+history) }

// Split is the reverse of At, with no history, and of InHistory. The zero revision is
// before all changes.
func (r Revision) Split() (n int64, history string, err error) {
	text, history, _ := strings.Cut(string(r), "@")
	if r == "" {
		return 0, "", nil
	}
	n, err = strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, history, fmt.Errorf("%q is not a revision of this store", r)
	}
	return n, history, nil
}

// Follows reports whether r, of a List, belongs to the history of an earlier List and is
// not before it. If it does, missing objects were deleted. If not, that is unknown: the
// store lost its data, was restored from a backup, or is another one. Every revision
// follows the zero revision.
func (r Revision) Follows(earlier Revision) bool {
	now, history, _ := r.Split()
	was, of, _ := earlier.Split()
	return earlier == "" || r != "" && history == of && now >= was
}

// With returns the later one of r, of a List, and the revision of an event in the same
// history.
func (r Revision) With(event Revision) Revision {
	now, history, _ := r.Split()
	next, _, _ := event.Split()
	if next <= now {
		return r
	}
	return InHistory(next, history)
}
