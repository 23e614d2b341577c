// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"

	"golang.org/x/sys/unix"
)

// The colours of a terminal.
const (
	red    = "31"
	yellow = "33"
	dim    = "2"
)

// coloured is text for standard error: coloured on a terminal, unless the user disables
// that (https://no-color.org).
func (a *app) coloured(colour, text string) string {
	f, ok := a.stderr.(*os.File)
	if !ok || a.getenv == nil || a.getenv("NO_COLOR") != "" || a.getenv("TERM") == "dumb" {
		return text
	}
	if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err != nil {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}
