// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// Damaged returns an error for each file, and each directory, that makes Read isolate a pod because it
// cannot be used. If there is no mirror, it returns none. It does not notice that two pods' files were
// exchanged, because a file does not contain its pod's UID. Read notices that.
func Damaged(p paths.Paths) (errs []error) {
	if _, err := os.Lstat(dir(p)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if _, err := readFile(filepath.Join(dir(p), headFile), "", ""); err != nil {
		errs = append(errs, err)
	}
	if Unknown(p) {
		return errs
	}
	for _, sub := range []string{namespacesDir, podsDir} {
		errs = append(errs, damagedIn(p, sub)...)
	}
	return errs
}

// damagedIn looks at the files of a directory.
func damagedIn(p paths.Paths, sub string) (errs []error) {
	if err := durable.CheckDir(p.State, below(sub)...); err != nil {
		return []error{fmt.Errorf("%w: only root may have write access", err)}
	}
	entries, err := os.ReadDir(filepath.Join(dir(p), sub))
	if err != nil {
		return []error{fmt.Errorf("%w: %s", err, again)}
	}
	for _, e := range entries {
		if durable.IsTemp(e.Name()) {
			continue // Write removes what a killed Write left
		}
		_, err := readAs(filepath.Join(dir(p), sub, e.Name()), func(data []byte) (policy.Decision, error) {
			c, err := parse(data)
			if err == nil && sub == namespacesDir && (c.namespace != e.Name() || c.pod != "") {
				err = fmt.Errorf("it is the file of pod %q of namespace %q", c.pod, c.namespace)
			}
			return c.Decision, err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // the agent may have removed it
			errs = append(errs, err)
		}
	}
	return errs
}
