// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"fmt"
	"slices"
	"strings"

	"github.com/jessevdk/go-flags"
)

// ManPage returns the man page of a program, in roff. A dated page has the date of
// $SOURCE_DATE_EPOCH. Without a date, the same program always has the same page.
func ManPage(p *flags.Parser, dated bool) string {
	var page strings.Builder
	p.WriteManPage(&page)
	text := page.String()
	if !dated {
		_, rest, _ := strings.Cut(text, "\n")
		text = fmt.Sprintf(".TH %s 1 \"\" \"\" \"Patchbay\"\n", p.Name) + rest
	}
	return usages(p.Command, tidy(p.Name, p.Usage, preformat(text)))
}

// usages gives the section of each command the usage line that its help has. The library's line lacks the
// arguments, and a command without flags has none.
func usages(root *flags.Command, page string) string {
	sections := strings.SplitAfter(page, "\n.SS ")
	for i, section := range sections[1:] {
		lines := strings.SplitAfter(section, "\n")
		words := strings.Fields(lines[0])
		c := root
		for _, w := range words {
			if c = c.Find(w); c == nil {
				break
			}
		}
		if c == nil || len(c.Commands()) > 0 {
			continue
		}
		usage := `\fBUsage\fP: ` + Usage(append([]string{root.Name}, words...), c) + "\n"
		if at := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, `\fBUsage\fP:`) }); at >= 0 {
			lines[at] = usage
		} else {
			lines = slices.Insert(lines, 2, ".PP\n"+usage) // after the name and the short description
		}
		sections[i+1] = strings.Join(lines, "")
	}
	return strings.Join(sections, "")
}

// tidy removes the library's placeholder for any command, usage, from a text about one command.
func tidy(program, usage, text string) string {
	every := program + " " + usage
	lines := strings.SplitAfter(strings.ReplaceAll(text, every+" <command>", every), "\n")
	for i, line := range lines {
		if strings.TrimSpace(line) != every && !strings.Contains(line, `\fB`+program+`\fP`) {
			lines[i] = strings.Replace(line, every+" ", program+" ", 1)
		}
	}
	return strings.Join(lines, "")
}

// preformat keeps indented lines as they are, because the library would join them into
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
