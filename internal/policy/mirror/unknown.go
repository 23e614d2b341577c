// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// ErrUnknown means that a pod is isolated because the agent has never known the policies on this node.
var ErrUnknown = errors.New("the policies of the cluster are not known on this node yet")

// Isolate makes every ADD isolate its pod until the first Write, unless there is a mirror. It writes a
// head without the directories beside it. Write and Isolate must not run at the same time.
func Isolate(p paths.Paths) error {
	if Known(p) {
		return nil
	}
	w := writer{paths: p, step: func() {}, keep: make(map[string]bool)}
	if w.mkdir() {
		w.put(headFile, content{Decision: closed()}) // a first Write that was killed leaves only its head, which may be open
	}
	if len(w.changed) > 0 {
		w.sync()
	}
	if err := w.failed(); err != nil {
		return fmt.Errorf("isolate new pods until the network policies are known, in %s: %w", dir(p), err)
	}
	return nil
}

// Known reports whether there is a mirror of the cluster's policies, however old.
func Known(p paths.Paths) bool { return has(p, namespacesDir) }

// Unknown reports whether ADDs isolate all pods because of Isolate.
func Unknown(p paths.Paths) bool { return !Known(p) && has(p, headFile) }

func has(p paths.Paths, name string) bool {
	_, err := os.Lstat(filepath.Join(dir(p), name))
	return err == nil
}

// ReadAgain is Read for a pod that runs. As long as the policies are not known, it isolates only a pod
// that its ADD has isolated for that reason (early). The others were open before, and stay open.
func ReadAgain(p paths.Paths, pod Pod, early bool) (policy.Decision, error) {
	d, err := Read(p, pod)
	if errors.Is(err, ErrUnknown) && !early {
		return policy.Decision{}, nil
	}
	return d, err
}
