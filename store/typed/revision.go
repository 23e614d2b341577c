// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package typed

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/patchbay-net/patchbay/store"
)

// Revision is the revision of an engine that counts its changes.
func Revision(n int64) store.Revision { return store.Revision(strconv.FormatInt(n, 10)) }

// Number is Revision's reverse; the zero revision is 0.
func Number(r store.Revision) (int64, error) {
	if r == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(string(r), 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is no revision of this store", r)
	}
	return n, nil
}

// OfHistory is the number of a revision and the history that it is of; "" when it
// says none, as that of a single object.
func OfHistory(r store.Revision) (number int64, history string, err error) {
	text, history, _ := strings.Cut(string(r), "@")
	number, err = Number(store.Revision(text))
	return number, history, err
}
