// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/podnet"
)

// uncover looks at the files that a runtime uses instead of our network's, because their names sort
// first. It removes a file that containerd made from our template, and reports all others.
func (a *Agent) uncover() error {
	entries, err := os.ReadDir(a.opts.ConfDir)
	if err != nil {
		return fmt.Errorf("look for networks that hide ours: %w", err)
	}
	var errs []error
	for _, e := range entries {
		hides := e.Name() < podnet.File && slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name()))
		if hides && !e.IsDir() {
			errs = append(errs, a.uncoverFrom(filepath.Join(a.opts.ConfDir, e.Name()), e.Type().IsRegular()))
		}
	}
	return errors.Join(errs...)
}

// uncoverFrom removes one file, if it is exactly what containerd makes from our template. The DEL
// of its pods still works, because our file has the same network with the same addresses. A file
// that may have been changed by hand stays.
func (a *Agent) uncoverFrom(path string, regular bool) error {
	data, err := durable.ReadConf(path)
	switch {
	case err == nil && podnet.IsFilled(data) && regular:
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%w: remove the file, because container runtimes take it before %s", err, podnet.File)
		}
		a.opts.Log("network %s: %s removed, which containerd made from our template: %s takes its place", podnet.Name, path, podnet.File)
		return nil
	case err == nil && podnet.IsOurs(data):
		return fmt.Errorf("container runtimes take %s before %s; it is the same network, changed by hand or by another release: "+
			"remove it; its pods keep their network, and their DEL still works", path, podnet.File)
	case err == nil:
		return fmt.Errorf("container runtimes take %s before %s: move it away, then new pods get our network", path, podnet.File)
	case errors.Is(err, os.ErrNotExist):
		return nil // it has just gone, or the link leads nowhere
	}
	return fmt.Errorf("container runtimes take a file before %s that cannot be read, and containerd then has no network: move it away: %w", podnet.File, err)
}
