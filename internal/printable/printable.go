// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package printable is for names that somebody else chose, in what a person reads.
package printable

import (
	"strconv"
	"strings"
)

// Text is s with whatever would move the cursor, break the line or hide something
// written as Go writes it, such as \n and \x1b.
func Text(s string) string {
	if !strings.ContainsFunc(s, hidden) {
		return s
	}
	var out strings.Builder
	for _, r := range s {
		if hidden(r) {
			out.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
			continue
		}
		out.WriteRune(r)
	}
	return out.String()
}

// Cells is Text of each.
func Cells(cells []string) []string {
	out := make([]string, len(cells))
	for i, c := range cells {
		out[i] = Text(c)
	}
	return out
}

func hidden(r rune) bool { return !strconv.IsPrint(r) }
