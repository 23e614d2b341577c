// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Command dellink deletes the network interfaces that its arguments name. It measures the least
// that a DEL costs: one process and the deletion of one link.
package main

import (
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
)

func main() {
	for _, name := range os.Args[1:] {
		if err := del(name); err != nil {
			fmt.Fprintln(os.Stderr, "delete link", name+":", err)
			os.Exit(1)
		}
	}
}

func del(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkDel(link)
}
