// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Locked reports whether another process holds the exclusive lock on a file. If it cannot look, or if
// the file is missing, it returns false. While it looks, it holds a shared lock for a few microseconds,
// so who takes the lock should try again for some time.
func Locked(path string) bool {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	return errors.Is(unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}
