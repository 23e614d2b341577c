// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nettest

import "os/exec"

// Toolchain is a Go toolchain, for tests that build a program. The machine of
// the second kernel has none; there the test is left to the first.
func Toolchain() Feature {
	return Feature{"go toolchain", func() error { _, err := exec.LookPath("go"); return err }}
}
