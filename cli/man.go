// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import "github.com/patchbay-net/patchbay/internal/terminal"

const manLong = `Print the man page, in roff:

  patchbay man | man -l -
  patchbay man > /usr/local/share/man/man1/patchbay.1`

type manCommand struct{ app *app }

// Execute prints the page.
func (c *manCommand) Execute([]string) error {
	p, err := c.app.parser()
	if err != nil {
		return err
	}
	return c.app.print(terminal.ManPage(p, c.app.getenv("SOURCE_DATE_EPOCH") != "") + manTail)
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
0, 1, 2
why: allowed, dropped, not known or failed; trace: the packet arrives, ends or
is refused, could not be sent
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
signal n interrupted patchbay, which has cleaned up; run: signal n ended the command
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
