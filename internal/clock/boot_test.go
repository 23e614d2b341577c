// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package clock

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestID(t *testing.T) {
	id, err := BootID("/proc")
	if err != nil || len(id) != 36 || strings.ContainsAny(id, " \n") {
		t.Errorf("%q, %v", id, err)
	}
	proc := t.TempDir()
	if id, err := BootID(proc); id != "" || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a file: %q, %v", id, err)
	}
	dir := filepath.Join(proc, "sys/kernel/random")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for content, want := range map[string]string{"another\n": "another", "bare": "bare", "": ""} {
		if err := os.WriteFile(filepath.Join(dir, "boot_id"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if id, err := BootID(proc); err != nil || id != want {
			t.Errorf("of %q: %q, %v", content, id, err)
		}
	}
}

func TestSince(t *testing.T) {
	before := SinceBoot()
	time.Sleep(10 * time.Millisecond)
	if passed := SinceBoot() - before; before <= 0 || passed < 10*time.Millisecond || passed > time.Minute {
		t.Errorf("%v passed since %v", passed, before)
	}
}
