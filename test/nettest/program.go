// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nettest

import "os/exec"

// Program is a program of the machine that a test uses: go, nft, conntrack. scripts/setup
// installs them all; the machine of the second kernel has few, and skips such a test.
func Program(name string) Feature {
	return Feature{"program " + name, func() error { _, err := exec.LookPath(name); return err }}
}
