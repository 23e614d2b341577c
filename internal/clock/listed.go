// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package clock

import (
	"context"
	"encoding/json"
	"time"

	"golang.org/x/sys/unix"
)

// ListedKey is the key, in the configuration of a GC by our runtime library, of the time at
// which its list of valid attachments was begun: a later attachment cannot be on the list,
// so its absence does not make it invalid.
const ListedKey = "patchbay/listed"

// files is the time that a file written now gets: the kernel dates files by a clock that
// advances in steps of some milliseconds.
func files() time.Time {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &ts); err != nil {
		return time.Now()
	}
	return time.Unix(ts.Unix())
}

// Listing returns a moment that has passed for files too: a file written after this call
// has a later date.
func Listing(ctx context.Context) time.Time {
	begun := time.Now().Round(0)
	for !files().After(begun) && Sleep(ctx, time.Millisecond) {
		// the condition waits for the next step
	}
	return begun
}

// Listed reads the moment from a GC's configuration; ok is false without one.
func Listed(config []byte) (t time.Time, ok bool) {
	var conf struct {
		Listed time.Time `json:"patchbay/listed"`
	}
	if json.Unmarshal(config, &conf) != nil {
		return t, false
	}
	return conf.Listed, !conf.Listed.IsZero()
}
