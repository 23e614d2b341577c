// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// tester is what runs the scripts: `go test`, or a program.
type tester interface {
	testing.TB
	sub(name string, fn func(tester))
	verbose() bool
	begins(w *World) // a script has made its world
}

// goTest is a test of `go test`.
type goTest struct{ *testing.T }

func (t goTest) sub(name string, fn func(tester)) {
	t.Run(name, func(t *testing.T) { fn(goTest{t}) })
}
func (t goTest) verbose() bool { return testing.Verbose() }
func (t goTest) begins(*World) {}

// shim makes a tester usable as a testscript.T. shim runs the scripts one after another: they
// share the host's namespace, in which the suite looks for leaks.
type shim struct{ tester }

func (t shim) Run(name string, f func(testscript.T)) {
	t.sub(name, func(t tester) { f(shim{t}) })
}
func (t shim) Parallel()     {}
func (t shim) Verbose() bool { return t.verbose() }

// trial is a test of a program. It has the methods of a testing.TB that the suite and the packages below
// internal/test call; no other method works.
type trial struct {
	testing.TB // nil: only the package testing can implement its private method

	name string
	done func(*trial) // gets each trial without parts, when it has ended

	mu              sync.Mutex // a command may run in parallel
	log             strings.Builder
	failed, skipped bool
	why             string // it was skipped
	cleanups        []func()
	parts           int
	world           *World
	took            time.Duration
}

func (t *trial) sub(name string, fn func(tester)) {
	t.parts++
	part := &trial{name: strings.TrimPrefix(t.name+"/"+name, "/"), done: t.done}
	begun := time.Now()
	part.run(func() { fn(part) })
	for i := len(part.cleanups) - 1; i >= 0; i-- {
		part.run(part.cleanups[i])
	}
	part.took = time.Since(begun)
	if part.parts == 0 || part.failed && part.log.Len() > 0 {
		t.done(part)
	}
	t.failed = t.failed || part.failed
}

// run runs fn until it returns, fails or panics.
func (t *trial) run(fn func()) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() {
			if p := recover(); p != nil {
				t.Errorf("panic: %v\n%s", p, debug.Stack())
			}
		}()
		fn()
	}()
	<-ended
}

func (t *trial) begins(w *World) { t.world = w }

func (t *trial) write(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.log.WriteString(strings.TrimSuffix(text, "\n") + "\n")
}

func (t *trial) end(failed, skipped bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failed, t.skipped = t.failed || failed, t.skipped || skipped
}

func (t *trial) verbose() bool                     { return true }
func (t *trial) Helper()                           {}
func (t *trial) Name() string                      { return t.name }
func (t *trial) Failed() bool                      { return t.failed }
func (t *trial) Cleanup(fn func())                 { t.cleanups = append(t.cleanups, fn) }
func (t *trial) Log(args ...any)                   { t.write(fmt.Sprintln(args...)) }
func (t *trial) Logf(format string, args ...any)   { t.write(fmt.Sprintf(format, args...)) }
func (t *trial) Fail()                             { t.end(true, false) }
func (t *trial) Error(args ...any)                 { t.Log(args...); t.Fail() }
func (t *trial) Errorf(format string, args ...any) { t.Logf(format, args...); t.Fail() }
func (t *trial) Fatal(args ...any)                 { t.Log(args...); t.FailNow() }
func (t *trial) Fatalf(format string, args ...any) { t.Logf(format, args...); t.FailNow() }
func (t *trial) FailNow()                          { t.Fail(); runtime.Goexit() }
func (t *trial) Skip(args ...any)                  { t.skip(fmt.Sprint(args...)) }
func (t *trial) Skipf(format string, args ...any)  { t.skip(fmt.Sprintf(format, args...)) }
func (t *trial) SkipNow()                          { t.skip("") }

// skip ends a trial of a rule that does not apply.
func (t *trial) skip(why string) {
	t.why = why
	t.end(false, true)
	runtime.Goexit()
}

// TempDir makes a directory that lives as long as the trial.
func (t *trial) TempDir() string {
	dir, err := os.MkdirTemp("", "patchbay-conformance-")
	if err != nil {
		t.Fatalf("make a directory: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // what cannot be removed is in the system's directory for temporary files
	return filepath.Clean(dir)
}
