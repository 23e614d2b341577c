// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package draw

import (
	"flag"
	"fmt"
	"runtime"
	"testing"
	"time"
)

// failed is a test that notes whether it was ended.
type failed struct {
	testing.TB
	ended bool
}

func (f *failed) Helper()             {}
func (f *failed) Name() string        { return "failed" }
func (f *failed) Logf(string, ...any) {}

func (f *failed) Fatalf(string, ...any) {
	f.ended = true
	runtime.Goexit()
}

// ends reports whether do ends its test.
func ends(do func(testing.TB)) bool {
	f, done := &failed{}, make(chan struct{})
	go func() {
		defer close(done)
		do(f)
	}()
	<-done
	return f.ended
}

func TestLengths(t *testing.T) {
	const name = "PATCHBAY_DRAW_TEST"
	t.Setenv(Env, "")
	t.Setenv(name, "")
	if n, d := Number(t, name, 3, 30), Time(t, name, time.Second, time.Minute); n != 3 || d != time.Second {
		t.Errorf("few: %d, %v", n, d)
	}
	t.Run("short", func(t *testing.T) {
		set := flag.Lookup("test.short").Value.Set
		defer set(fmt.Sprint(testing.Short())) //nolint:errcheck // it is what it was
		set("true")                            //nolint:errcheck // it is a flag of testing
		if n, one := Number(t, name, 9, 30), Number(t, name, 1, 30); n != 3 || one != 1 {
			t.Errorf("%d, %d", n, one)
		}
	})
	t.Setenv(Env, "all")
	if n, d := Number(t, name, 3, 30), Time(t, name, time.Second, time.Minute); n != 30 || d != time.Minute {
		t.Errorf("all: %d, %v", n, d)
	}
	t.Setenv(name, "7")
	if n := Number(t, name, 3, 30); n != 7 {
		t.Errorf("7: %d", n)
	}
	t.Setenv(name, "2m")
	if d := Time(t, name, 0, 0); d != 2*time.Minute {
		t.Errorf("2m: %v", d)
	}
}

func TestSeed(t *testing.T) {
	t.Setenv(SeedEnv, "")
	if seed, given := Seed(t); seed != 1 || given {
		t.Errorf("%d, %v", seed, given)
	}
	t.Setenv(SeedEnv, "18")
	if seed, given := Seed(t); seed != 18 || !given {
		t.Errorf("%d, %v", seed, given)
	}
}

// A misspelled value must not be taken for a short draw.
func TestWrongValues(t *testing.T) {
	const name = "PATCHBAY_DRAW_TEST"
	t.Setenv(name, "many")
	t.Setenv(SeedEnv, "many")
	for what, do := range map[string]func(testing.TB){
		"number": func(tb testing.TB) { Number(tb, name, 1, 2) },
		"time":   func(tb testing.TB) { Time(tb, name, 1, 2) },
		"seed":   func(tb testing.TB) { Seed(tb) },
	} {
		if !ends(do) {
			t.Errorf("%s: %q is accepted", what, "many")
		}
	}
	t.Setenv(Env, "al")
	if !ends(func(tb testing.TB) { All(tb) }) {
		t.Error("PATCHBAY_DRAW=al is accepted")
	}
}
