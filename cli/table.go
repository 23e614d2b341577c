// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"unicode/utf8"

	"github.com/patchbay-net/patchbay/internal/terminal"
)

// table formats text in columns that are two spaces apart.
type table struct {
	rows   [][]string
	widths []int // widths of the columns; the last cell of a row is not padded
}

// newTable returns a table. If titles are given, they are its first line.
func newTable(head ...string) *table {
	t := new(table)
	if len(head) > 0 {
		t.row(head...)
	}
	return t
}

func (t *table) row(cells ...string) {
	cells = terminal.PrintableCells(cells)
	t.rows = append(t.rows, cells)
	for i := 0; i < len(cells)-1; i++ {
		if i == len(t.widths) {
			t.widths = append(t.widths, 0)
		}
		t.widths[i] = max(t.widths[i], utf8.RuneCountInString(cells[i]))
	}
}

// String formats the table, without trailing spaces.
func (t *table) String() string {
	var out strings.Builder
	for _, cells := range t.rows {
		line := ""
		for i, c := range cells {
			line += c
			if i < len(cells)-1 {
				line += strings.Repeat(" ", t.widths[i]+2-utf8.RuneCountInString(c))
			}
		}
		out.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return out.String()
}
