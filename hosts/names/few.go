// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package names

import (
	"sync"
	"time"
)

// few passes on a few lines in a time, and at its end how many more there were:
// containers can cause some, and must not fill the host's log.
type few struct {
	mu    sync.Mutex
	n     int // lines in this time
	timer *time.Timer
}

const fewLines, fewTime = 10, time.Minute

func (f *few) print(log func(string, ...any), format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.n == 0 {
		f.timer = time.AfterFunc(fewTime, func() { f.end(log) })
	}
	if f.n++; f.n <= fewLines {
		log(format, args...)
	}
}

// end begins another time.
func (f *few) end(log func(string, ...any)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.timer != nil {
		f.timer.Stop()
	}
	if more := f.n - fewLines; more > 0 {
		log("names: %d more lines within %v were left out", more, fewTime)
	}
	f.n = 0
}
