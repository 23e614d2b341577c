// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/spec"
)

// defaultInterface is the link of the best default route of the main table, IPv4 before
// IPv6. Of several next hops the first counts.
func defaultInterface(conn *nl.Conn) (string, error) {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		index, err := conn.DefaultLink(family, true)
		if err != nil {
			return "", fmt.Errorf("look for the default route: %w", err)
		}
		if index == 0 {
			continue
		}
		link, err := conn.LinkAt(index)
		if err != nil {
			return "", err
		}
		return link.Attrs().Name, nil
	}
	return "", spec.Invalid("no default route interface found")
}
