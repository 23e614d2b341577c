// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/paths"
)

// fakeDriver is a patchbayd that logs its arguments and prints an answer.
func fakeDriver(t *testing.T, answer string, status int) (args string) {
	t.Helper()
	dir := t.TempDir()
	args = filepath.Join(dir, "args")
	script := fmt.Sprintf("#!/bin/sh\necho \"$*\" > %s\necho 'patchbayd: it says so' >&2\necho '%s'\nexit %d\n", args, answer, status)
	if err := os.WriteFile(filepath.Join(dir, "patchbayd"), []byte(script), 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":/usr/bin:/bin")
	return args
}

func driverOptions(t *testing.T) *Options {
	t.Helper()
	p := paths.Default()
	p.State = t.TempDir()
	return &Options{Paths: p, Grace: time.Minute, Driver: true}
}

func TestAskDriver(t *testing.T) {
	o := driverOptions(t)
	args := fakeDriver(t, `[{"kind":"endpoint","name":"8a65","why":"its sandbox is gone","removed":true},{"kind":"network","name":"77","state":"dead","why":"x","error":"broken"},{"kind":"endpoint","name":"99","state":"unsure","why":"y"}]`, 1)
	if list, err := askDriver(t.Context(), o); len(list) > 0 || err != nil {
		t.Errorf("a driver that never was is asked: %v %v", list, err)
	}
	if err := os.MkdirAll(filepath.Join(driverState(o.Paths), "networks", "n"), 0o700); err != nil {
		t.Fatal(err)
	}
	o.Driver = false
	if list, err := askDriver(t.Context(), o); len(list) > 0 || err != nil {
		t.Errorf("asked without --from docker: %v %v", list, err)
	}
	o.Driver, o.Apply = true, true
	list, err := askDriver(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), "it says so") || len(list) != 3 {
		t.Fatalf("%v %v", list, err)
	}
	if s := list[0]; s.Objects[0] != (Object{"docker endpoint", "8a65"}) || s.State != Dead || !s.Removed || s.Why != "its sandbox is gone" {
		t.Errorf("%+v", s)
	}
	if s := list[1]; s.Removed || s.State != Dead || s.Error != "broken" {
		t.Errorf("%+v", s)
	}
	if s := list[2]; s.Removed || s.State != Unsure || s.Why != "y" {
		t.Errorf("%+v", s)
	}
	if text, err := os.ReadFile(args); string(text) != "docker gc --json --grace=1m0s --apply\n" || err != nil {
		t.Errorf("called with %q %v", text, err)
	}
	o.Apply = false
	args = fakeDriver(t, "[]", 0)
	if list, err := askDriver(t.Context(), o); len(list) > 0 || err != nil {
		t.Errorf("%v %v", list, err)
	}
	if text, err := os.ReadFile(args); string(text) != "docker gc --json --grace=1m0s\n" || err != nil {
		t.Errorf("called with %q %v", text, err)
	}
	fakeDriver(t, "no JSON", 0)
	if _, err := askDriver(t.Context(), o); err == nil {
		t.Error("no JSON was taken")
	}
	t.Setenv("PATH", "/nonexistent")
	if _, err := os.Stat(installed); err == nil {
		return // patchbayd is installed on this machine, so the test cannot hide it
	}
	if _, err := askDriver(t.Context(), o); !errors.Is(err, errNoProgram) {
		t.Error(err)
	}
}
