// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"os"
	"strings"
	"testing"
)

// The log of a keeper does not grow without limit, and keeps what the last keeper wrote.
func TestKeeperLog(t *testing.T) {
	path := t.TempDir() + "/" + keeperLog
	if err := os.WriteFile(path, []byte("of the last keeper\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := nextLog(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // a test
	read := func(name string) string {
		t.Helper()
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	if got := read(path + keptLog); got != "of the last keeper\n" {
		t.Errorf("kept: %q", got)
	}
	l := &limitedLog{path: path, fd: int(f.Fd()), limit: 1000}
	for i := range 100 {
		if _, err := l.Write([]byte(strings.Repeat("x", 98) + string(rune('a'+i%26)) + "\n")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Write([]byte("last\n")); err != nil {
		t.Fatal(err)
	}
	now, before := read(path), read(path+keptLog)
	if now != "last\n" || len(before) != 1000 {
		t.Errorf("%d bytes, and %d in the file before", len(now), len(before))
	}
	if isFile(os.Stderr, path) || !isFile(f, path) {
		t.Error("it does not find out that its output is the file")
	}
}
