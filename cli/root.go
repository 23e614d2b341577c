// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// rootHint is the advice for an ordinary user.
const rootHint = "sudo, or a user namespace; `patchbay demo` and `patchbay explain` run as any user"

// needRoot refuses what only root can do, before anything is touched or printed. Root
// without capabilities gets the kernel's errors instead.
func needRoot(command string) error {
	if os.Geteuid() == 0 {
		return nil
	}
	return hinted(fmt.Errorf("%s needs root", command), rootHint)
}

// rootless puts a permission error behind one sentence that says that the command needs
// root. Other errors stay as they are.
func rootless(command string, err error) error {
	if os.Geteuid() == 0 || !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return hinted(fmt.Errorf("%s needs root: %w", command, err), rootHint)
}
