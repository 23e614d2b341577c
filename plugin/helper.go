// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"io"
)

// helperArg is the argument that makes a plugin's program run its Helper. Runtimes pass
// none.
const helperArg = "__helper"

// HelperArgs are the arguments, from the program's name on, with which a plugin starts its
// own program (Session.Self) to run its Helper.
func HelperArgs(p string, args ...string) []string {
	return append([]string{p, helperArg}, args...)
}

// helper runs a Helper if the process was started for one.
func helper(p *Plugin, args []string, stderr io.Writer) (status int, ok bool) {
	if p.Helper == nil || len(args) < 2 || args[1] != helperArg {
		return 0, false
	}
	if err := p.Helper(args[2:]); err != nil {
		fmt.Fprintln(stderr, err) //nolint:errcheck // there is nowhere to report it
		return 1, true
	}
	return 0, true
}

// SelfPath is the path of this program, even where its file was replaced. It is the
// Session.Self of a program whose main is Main or MainOf.
const SelfPath = "/proc/self/exe"
