// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package refuse holds the tests of bad input: for every plugin, for the runtime
// and for the command line a table of what is refused, with code and words, and
// the proof that a refusal touched nothing; what others plant in place of state; and the
// modes of state files.
package refuse
