// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Command site writes the pages of the repository as a web site: files of HTML that need no server, no script and nothing
// of another host. It fails if a link leads nowhere.
//
//	go run ./test/site DIR
package main

import (
	"fmt"
	"os"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: site DIR")
		os.Exit(2)
	}
	pages, err := Write(os.DirFS("."), os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
	fmt.Fprintf(os.Stderr, "site: %d pages in %s: open %[2]s/index.html\n", pages, os.Args[1])
}
