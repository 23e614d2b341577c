// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package clock identifies the current boot of the kernel, sleeps until a context ends, and
// stores what our runtime library tells a GC about its list of valid attachments: when it was made,
// and whether it is the list of every runtime.
package clock

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/spec"
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

// ListedKey is a key that our runtime library adds to the configuration of a GC. Its value is the
// time at which the caller began the list of valid attachments. An attachment made later cannot
// be on the list, so GC must keep it.
const ListedKey = spec.ListedKey

// Everyones reports whether a GC's configuration says that its list has the attachments of every runtime
// (spec.EveryonesKey).
func Everyones(config []byte) bool {
	var conf struct {
		Everyones bool `json:"patchbay/everyones"`
	}
	return json.Unmarshal(config, &conf) == nil && conf.Everyones
}

// files returns the time that a file written now would get. The kernel dates files with a
// clock that advances in steps of some milliseconds.
func files() time.Time {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &ts); err != nil {
		return time.Now()
	}
	return time.Unix(ts.Unix())
}

// Listing returns the current time. It first waits until the clock of files has passed this time
// too. So a file written after this call has a later date.
func Listing(ctx context.Context) time.Time {
	begun := time.Now().Round(0)
	for !files().After(begun) && Sleep(ctx, time.Millisecond) {
		// the loop condition waits for the clock's next step
	}
	return begun
}

// Listed reads the time from a GC's configuration. If the configuration has none, ok is false.
func Listed(config []byte) (t time.Time, ok bool) {
	var conf struct {
		Listed time.Time `json:"patchbay/listed"`
	}
	if json.Unmarshal(config, &conf) != nil {
		return t, false
	}
	return conf.Listed, !conf.Listed.IsZero()
}

// Sleep waits for d, or until ctx ends. whole reports whether it waited for the whole time. If
// the time and ctx end at the same moment, whole may be true or false.
func Sleep(ctx context.Context, d time.Duration) (whole bool) {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
