// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Command patchbay-conformance tests CNI plugins and container runtimes of any project and in any language.
package main

import (
	"os"

	"github.com/patchbay-net/patchbay/conformance/command"
)

func main() { os.Exit(command.Main(os.Args[1:], os.Stdout, os.Stderr)) }
