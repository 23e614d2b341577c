// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"strconv"
	"strings"
)

// Printable returns s with all characters escaped that would move the cursor, break the line
// or hide text. Printable writes them as Go does, such as \n and \x1b.
func Printable(s string) string {
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

// PrintableCells applies Printable to each cell.
func PrintableCells(cells []string) []string {
	out := make([]string, len(cells))
	for i, c := range cells {
		out[i] = Printable(c)
	}
	return out
}

func hidden(r rune) bool { return !strconv.IsPrint(r) }
