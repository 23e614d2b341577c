// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package cli is the command line of patchbay, one file a command.
//
// A command is a struct whose fields are its flags and whose Execute does the
// work (docs/adr/0011-command-line-library.md). Standard output carries data
// only; what went wrong goes to standard error as `patchbay: error: ...`, what
// to do about it as `patchbay: hint: ...`. The exit codes are in docs/cli.md.
package cli
