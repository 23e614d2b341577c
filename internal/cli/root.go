// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// rootHint says what an ordinary user can do.
const rootHint = "sudo, or a user namespace; `patchbay demo` and `patchbay explain` run as any user"

// needRoot refuses, before anything is touched or said, what only root can do.
// Root without its capabilities shows by what fails.
func needRoot(command string) error {
	if os.Geteuid() == 0 {
		return nil
	}
	return hinted(fmt.Errorf("%s needs root", command), rootHint)
}

// rootless makes a failure for want of rights one sentence that says so, with
// what was refused behind it. Other errors come back as they are.
func rootless(command string, err error) error {
	if os.Geteuid() == 0 || !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return hinted(fmt.Errorf("%s needs root: %w", command, err), rootHint)
}
