// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Command probe is package probe as a program for containers: built without cgo it runs in
// an empty file system.
//
//	probe serve ADDR          answer on ADDR over TCP and UDP until killed
//	probe who NETWORK ADDR    ask ADDR which address it sees, print the answer
package main

import (
	"fmt"
	"os"

	"github.com/patchbay-net/patchbay/test/e2e/probe"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "serve":
		if _, err := probe.Serve(args[1]); err != nil {
			return err
		}
		select {}
	case len(args) == 3 && args[0] == "who":
		seen, err := probe.Who(args[1], args[2])
		if err == nil {
			fmt.Println(seen)
		}
		return err
	}
	return fmt.Errorf("usage: probe serve ADDR | probe who NETWORK ADDR")
}
