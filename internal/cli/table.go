// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"text/tabwriter"

	"github.com/patchbay-net/patchbay/internal/printable"
)

// table is text in columns.
type table struct {
	b strings.Builder
	w *tabwriter.Writer
}

// newTable begins a table, with a line of titles if there are any.
func newTable(head ...string) *table {
	t := new(table)
	t.w = tabwriter.NewWriter(&t.b, 0, 8, 2, ' ', 0)
	if len(head) > 0 {
		t.row(head...)
	}
	return t
}

func (t *table) row(cells ...string) {
	t.w.Write([]byte(strings.Join(printable.Cells(cells), "\t") + "\n")) //nolint:errcheck // a strings.Builder takes everything
}

// String ends the table. Lines have no spaces at their end.
func (t *table) String() string {
	t.w.Flush() //nolint:errcheck // a strings.Builder takes everything
	var out strings.Builder
	for line := range strings.Lines(t.b.String()) {
		out.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return out.String()
}
