// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package names

import (
	"sync"
	"time"
)

// logLimiter logs only a few lines per interval. At the end of the interval it logs how many it
// left out. Containers can cause these lines, and must not fill the host's log.
type logLimiter struct {
	mu    sync.Mutex
	n     int // lines in this interval
	timer *time.Timer
}

const maxLines, lineInterval = 10, time.Minute

func (f *logLimiter) print(log func(string, ...any), format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.n == 0 {
		f.timer = time.AfterFunc(lineInterval, func() { f.end(log) })
	}
	if f.n++; f.n <= maxLines {
		log(format, args...)
	}
}

// end ends the interval.
func (f *logLimiter) end(log func(string, ...any)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.timer != nil {
		f.timer.Stop()
	}
	if more := f.n - maxLines; more > 0 {
		log("names: %d more lines within %v were left out", more, lineInterval)
	}
	f.n = 0
}
