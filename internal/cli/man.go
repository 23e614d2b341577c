// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
)

const manLong = `Print the man page, in roff:

  patchbay man | man -l -
  patchbay man > /usr/local/share/man/man1/patchbay.1`

type manCommand struct{ app *app }

// Execute prints the page. Its date is $SOURCE_DATE_EPOCH or, so that the
// same program prints the same page, none.
func (c *manCommand) Execute(args []string) error {
	if err := noArgs(args); err != nil {
		return err
	}
	p, err := c.app.parser()
	if err != nil {
		return err
	}
	var page strings.Builder
	p.WriteManPage(&page)
	text := page.String()
	if c.app.getenv("SOURCE_DATE_EPOCH") == "" {
		_, rest, _ := strings.Cut(text, "\n")
		text = ".TH patchbay 1 \"\" \"\" \"Patchbay\"\n" + rest
	}
	return c.app.print(tidy(preformat(text)))
}

// preformat keeps indented lines as they are: the library would fill them into
// paragraphs.
func preformat(roff string) string {
	var b strings.Builder
	verbatim := false
	for line := range strings.Lines(roff) {
		indented := strings.HasPrefix(line, "  ")
		switch {
		case indented && !verbatim:
			b.WriteString(".nf\n")
		case !indented && verbatim:
			b.WriteString(".fi\n")
		}
		verbatim = indented
		if line == "\n" {
			line = ".PP\n"
		}
		b.WriteString(line)
	}
	return b.String()
}
