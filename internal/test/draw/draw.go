// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package draw says how long the tests are that draw random cases, repeat something, or run for a
// time. `make test` draws few, for a person who waits. `make test-all` sets PATCHBAY_DRAW=all, which
// draws more. An environment variable of the test, such as PATCHBAY_DIFF_CASES, says it exactly.
package draw

import (
	"os"
	"strconv"
	"testing"
	"time"
)

const (
	// Env is the environment variable that is "all" if tests are to draw more.
	Env = "PATCHBAY_DRAW"
	// SeedEnv is the environment variable with the seed of every test's draws. A test that fails
	// prints it, and so repeats what it drew.
	SeedEnv = "PATCHBAY_SEED"
)

// All reports whether tests draw more than in `make test`. It notes in the test's log that the test
// asks, so that scripts/draws runs again the tests that draw, and no others.
func All(tb testing.TB) bool {
	tb.Helper()
	tb.Logf("patchbay-draw: %s", tb.Name())
	switch text := os.Getenv(Env); text {
	case "":
		return false
	case "all":
		return true
	default:
		tb.Fatalf("%s=%s: it is all, or empty", Env, text)
		return false
	}
}

// Number returns how many cases a test draws: what the environment variable of this name says, else
// few, or all if [All]. It is a quarter of few with -test.short, in the emulated machine of scripts/test-kernel.
func Number(tb testing.TB, name string, few, all int) int {
	tb.Helper()
	if n, given := number(tb, name); given {
		return int(n)
	}
	switch {
	case All(tb):
		return all
	case testing.Short():
		return (few + 3) / 4
	}
	return few
}

// Time returns how long a test runs, as Number does.
func Time(tb testing.TB, name string, few, all time.Duration) time.Duration {
	tb.Helper()
	if text := os.Getenv(name); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			tb.Fatalf("%s: %v", name, err)
		}
		return d
	}
	if All(tb) {
		return all
	}
	return few
}

// Seed returns the seed in [SeedEnv]. Without the variable, given is false, and the seed is always 1:
// whether a change passes must not be luck. The nightly run draws from a seed of its own.
func Seed(tb testing.TB) (seed uint64, given bool) {
	tb.Helper()
	if n, given := number(tb, SeedEnv); given {
		return n, true
	}
	return 1, false
}

func number(tb testing.TB, name string) (n uint64, given bool) {
	tb.Helper()
	text := os.Getenv(name)
	if text == "" {
		return 0, false
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		tb.Fatalf("%s: %v", name, err)
	}
	return n, true
}
