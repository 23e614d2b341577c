// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/flock"
)

// lockTime is how long Create waits for another process that is making the directory a mount
// point.
var lockTime = 30 * time.Second

// Create makes a network namespace and binds it at path, like `ip netns add`. If the directory of
// path is missing, Create makes it. Create shares the directory between mount namespaces. The
// namespace lives until Delete.
func Create(path string) error {
	if err := shareDir(filepath.Dir(path)); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return fmt.Errorf("make namespace: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("make namespace: %w", err)
	}
	if err := onThread(func() error { return bindNew(path) }); err != nil {
		return errors.Join(fmt.Errorf("make namespace %s: %w", path, err), os.Remove(path))
	}
	return nil
}

// Delete unmounts and removes path. The kernel ends the namespace when no process and no
// descriptor uses it. Delete accepts a missing path.
func Delete(path string) error {
	err := unix.Unmount(path, unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete namespace %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete namespace: %w", err)
	}
	return nil
}

// bindNew moves its thread into the new namespace. So the caller runs it on a thread that ends
// afterwards.
func bindNew(path string) error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	return unix.Mount("/proc/thread-self/ns/net", path, "none", unix.MS_BIND, "")
}

// shareDir makes dir a shared mount point, so that processes in other mount namespaces see the
// network namespaces bound in it.
func shareDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make namespace directory: %w", err)
	}
	err := share(dir)
	if errors.Is(err, unix.EINVAL) { // not a mount point yet
		err = bindDir(dir)
	}
	if err != nil {
		return fmt.Errorf("share namespace directory %s: %w", dir, err)
	}
	return nil
}

func share(dir string) error { return unix.Mount("", dir, "none", unix.MS_SHARED|unix.MS_REC, "") }

// bindDir makes dir a shared mount point. Two processes at once could both mount the directory,
// and each mount would show only some of the namespaces. So bindDir locks the directory, as `ip
// netns add` does, and checks again whether it is a mount point.
func bindDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // releases the lock
	if err := lock(int(f.Fd())); err != nil {
		return err
	}
	if err = share(dir); !errors.Is(err, unix.EINVAL) {
		return err
	}
	if err = unix.Mount(dir, dir, "none", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	return share(dir)
}

// lock waits for the lock of a directory. A process holds this lock only for the time of one mount.
func lock(fd int) error {
	err := flock.On(context.Background(), fd, flock.Options{Patience: lockTime})
	var locked *flock.LockedError
	if errors.As(err, &locked) {
		return fmt.Errorf("lock: another process, which lslocks(8) names, has kept it for %v: %w", lockTime, err)
	}
	if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	return nil
}

// onThread runs fn on a new thread, which ends afterwards.
func onThread(fn func() error) error {
	done := make(chan error)
	GoOnThread(func() { done <- fn() })
	return <-done
}
