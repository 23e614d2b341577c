// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package cli is the command line of patchbay, one file per command.
//
// A command is a struct whose fields are its flags and whose Execute does the work
// (docs/adr/0011-command-line-library.md). Standard output carries only data; errors go to
// standard error as `patchbay: error: ...`, and advice as `patchbay: hint: ...`. The exit
// codes are in docs/cli.md.
package cli
