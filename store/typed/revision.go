// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package typed

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/patchbay-net/patchbay/store"
)

// Revision returns the revision of an engine that counts its changes.
func Revision(n int64) store.Revision { return store.Revision(strconv.FormatInt(n, 10)) }

// Number is the reverse of Revision; the zero revision is 0.
func Number(r store.Revision) (int64, error) {
	if r == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(string(r), 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is not a revision of this store", r)
	}
	return n, nil
}

// OfHistory splits a revision into its number and its history, which is "" in the revision
// of a single object.
func OfHistory(r store.Revision) (number int64, history string, err error) {
	text, history, _ := strings.Cut(string(r), "@")
	number, err = Number(store.Revision(text))
	return number, history, err
}
