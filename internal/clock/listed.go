// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package clock

import (
	"context"
	"encoding/json"
	"time"

	"golang.org/x/sys/unix"
)

// ListedKey is a key that our runtime library adds to the configuration of a GC. Its value is
// the time at which the list of valid attachments was begun. An attachment made later cannot
// be on the list, so GC must not treat it as invalid.
const ListedKey = "patchbay/listed"

// files returns the time that a file written now would get. The kernel dates files with a
// clock that advances in steps of some milliseconds.
func files() time.Time {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &ts); err != nil {
		return time.Now()
	}
	return time.Unix(ts.Unix())
}

// Listing returns the current time, after waiting until the clock of files has passed it too.
// So a file written after this call has a later date.
func Listing(ctx context.Context) time.Time {
	begun := time.Now().Round(0)
	for !files().After(begun) && Sleep(ctx, time.Millisecond) {
		// the loop condition waits for the clock's next step
	}
	return begun
}

// Listed reads the time from a GC's configuration. ok is false if the configuration has none.
func Listed(config []byte) (t time.Time, ok bool) {
	var conf struct {
		Listed time.Time `json:"patchbay/listed"`
	}
	if json.Unmarshal(config, &conf) != nil {
		return t, false
	}
	return conf.Listed, !conf.Listed.IsZero()
}
