// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package clock

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// BootID returns the kernel's random boot id, 36 characters long. proc is the path of procfs
// ("/proc"). If procfs has no boot id, the error wraps fs.ErrNotExist.
func BootID(proc string) (string, error) {
	path := filepath.Join(proc, "sys/kernel/random/boot_id")
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) // os.File would start the poller
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", &fs.PathError{Op: "open", Path: path, Err: err})
	}
	defer unix.Close(fd) //nolint:errcheck // read only
	var id [64]byte
	n, err := unix.Read(fd, id[:])
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", &fs.PathError{Op: "read", Path: path, Err: err})
	}
	return strings.TrimSpace(string(id[:n])), nil
}

// SinceBoot returns the time since boot (CLOCK_BOOTTIME). SinceBoot includes suspended time.
// Setting the clock does not change it.
func SinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("CLOCK_BOOTTIME: " + err.Error()) // cannot fail since Linux 2.6.39
	}
	return time.Duration(ts.Nano())
}
