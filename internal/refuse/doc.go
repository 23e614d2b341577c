// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package refuse holds the tests of bad input: for every plugin and for the
// runtime a table of what is refused, with code and words, and the proof that
// a refusal touched nothing; what others plant in place of state; and the
// modes of state files.
package refuse
