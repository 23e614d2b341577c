// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// lockTime is how long Create waits for another process that is making the directory a mount
// point.
var lockTime = 30 * time.Second

// Create makes a network namespace and binds it at path, like `ip netns add`. Create makes the
// directory of path and shares it between mount namespaces. The namespace lives until Delete.
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

// Delete unmounts and removes path. The namespace ends when its last process or descriptor
// does. Delete accepts a missing path.
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

// bindNew runs on a thread that ends afterwards, because it moves the thread into the new
// namespace.
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

// bindDir makes dir a shared mount point. Without a lock, two calls at once could mount twice,
// and each mount would show half of the namespaces. So bindDir locks the directory, as `ip
// netns add` does, and then checks again.
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

// lock waits for the lock of a directory. Another holder keeps the lock only while it makes
// one mount.
func lock(fd int) error {
	ask := time.NewTicker(time.Millisecond)
	defer ask.Stop()
	end := time.After(lockTime)
	for {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock: %w", err)
		}
		select {
		case <-ask.C:
		case <-end:
			return fmt.Errorf("lock: another process, which lslocks(8) names, has kept it for %v: %w", lockTime, err)
		}
	}
}

// onThread runs fn on a new thread, which ends afterwards.
func onThread(fn func() error) error {
	done := make(chan error)
	GoOnThread(func() { done <- fn() })
	return <-done
}
