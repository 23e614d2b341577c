// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package refuse holds the tests of bad input: for every plugin, for the runtime and for
// the command line a table of what is refused, with code and message, and the proof that a
// refusal touched nothing; files that another user plants in place of state; and the modes
// of state files.
package refuse
