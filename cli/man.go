// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"slices"
	"strings"

	"github.com/jessevdk/go-flags"

	"github.com/patchbay-net/patchbay/internal/terminal"
)

const manLong = `Print the man page, in roff:

  patchbay man | man -l -
  patchbay man > /usr/local/share/man/man1/patchbay.1`

type manCommand struct{ app *app }

// Execute prints the page. Its date is $SOURCE_DATE_EPOCH, or empty. So the same program always
// prints the same page.
func (c *manCommand) Execute([]string) error {
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
	return c.app.print(usages(p.Command, tidy(preformat(text))) + manTail)
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
		usage := `\fBUsage\fP: ` + terminal.Usage(append([]string{root.Name}, words...), c) + "\n"
		if at := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, `\fBUsage\fP:`) }); at >= 0 {
			lines[at] = usage
		} else {
			lines = slices.Insert(lines, 2, ".PP\n"+usage) // after the name and the short description
		}
		sections[i+1] = strings.Join(lines, "")
	}
	return strings.Join(sections, "")
}

// manTail has the sections that the library does not write.
const manTail = `.SH EXIT STATUS
.TP
0
done
.TP
1
it failed: the network, a plugin, the kernel
.TP
2
a mistake on the command line
.TP
0, 1, 2, 3
doctor: healthy, warnings, problems, could not run
.TP
125
run failed before the command started
.TP
126, 127
run's command cannot be executed, does not exist
.TP
128 + n
run's command was ended by signal n
.PP
Otherwise run ends with the status of its command.
.SH ENVIRONMENT
.TP
NETCONFPATH
directory of networks (/etc/cni/net.d)
.TP
CNI_PATH
directories of plugins (/opt/cni/bin)
.TP
CNI_ARGS, CAP_ARGS, CNI_IFNAME
as for cnitool: arguments, capabilities, interface
.TP
PATCHBAY_RUN_DIR, PATCHBAY_CNI_DIR, PATCHBAY_NETNS_DIR
where records (/run/patchbay), addresses and results (/var/lib/cni) and named
namespaces (/run/netns) are
`

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
