// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/patchbay-net/patchbay/internal/terminal"
)

// Page is what `ls` of an agent prints for people: what it knows of the machines, and what is wrong. The zero value
// is empty.
type Page struct {
	Intro string // a line before the tables

	rows  [][]string
	wrong []string
}

// Row adds a row to the last table. A row without cells is an empty line, and begins another table.
func (p *Page) Row(cells ...string) { p.rows = append(p.rows, cells) }

// Wrong adds a problem. where is a phrase such as "on this host".
func (p *Page) Wrong(where, text string) { p.wrong = append(p.wrong, "wrong "+where+": "+text) }

// Print writes the page.
func (p *Page) Print(to io.Writer) error {
	var out bytes.Buffer
	if p.Intro != "" {
		fmt.Fprintf(&out, "%s\n\n", p.Intro)
	}
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	for _, cells := range p.rows {
		fmt.Fprintln(w, strings.Join(terminal.PrintableCells(cells), "\t")) //nolint:errcheck // into memory
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, text := range p.wrong {
		lines := terminal.PrintableCells(strings.Split(text, "\n"))
		fmt.Fprintf(&out, "\n%s\n", strings.Join(lines, "\n"))
	}
	_, err := to.Write(out.Bytes())
	return err
}
