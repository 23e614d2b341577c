// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"strconv"
	"strings"
)

// At returns the revision of the n-th change, for an engine that counts its changes.
func At(n int64) Revision { return Revision(strconv.FormatInt(n, 10)) }

// InHistory returns the revision for a List: the number of the newest change and the name of
// the history.
func InHistory(n int64, history string) Revision { return At(n) + Revision("@"+history) }

// Split reverses At, whose revisions have no history, and InHistory. The zero revision is
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

// Follows reports whether r comes from the same history as earlier and is not older; both are
// revisions of a List. If so, objects that are missing at r were deleted. If not, that is not
// certain: the store may have lost its data, been restored from a backup, or be another one.
// Every revision follows the zero revision.
func (r Revision) Follows(earlier Revision) bool {
	now, history, _ := r.Split()
	was, of, _ := earlier.Split()
	return earlier == "" || r != "" && history == of && now >= was
}

// With returns the later one of two revisions: r of a List, and that of an event in the same
// history.
func (r Revision) With(event Revision) Revision {
	now, history, _ := r.Split()
	next, _, _ := event.Split()
	if next <= now {
		return r
	}
	return InHistory(next, history)
}
