// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package refuse tests bad input. For every plugin, for the runtime and for the command line it
// has a table of what is refused, with code and message, and it proves that a refusal changes
// nothing. It also tests files that another user plants in place of state, and the modes of state
// files.
package refuse
