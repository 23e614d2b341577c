// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package clock

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A file written before Listing's time is not dated later. A file written after it is.
func TestListing(t *testing.T) {
	dir := t.TempDir()
	for range 20 {
		before, after := filepath.Join(dir, "before"), filepath.Join(dir, "after")
		write(t, before)
		begun := Listing(t.Context())
		write(t, after)
		if at(t, before).After(begun) || !at(t, after).After(begun) {
			t.Fatalf("%v, %v, %v", at(t, before), begun, at(t, after))
		}
		for _, path := range []string{before, after} {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func write(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func at(t *testing.T, path string) time.Time {
	t.Helper()
	fi, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return fi.ModTime()
}

func TestOf(t *testing.T) {
	begun := Listing(t.Context())
	conf, err := json.Marshal(map[string]any{ListedKey: begun})
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := Listed(conf); !ok || !got.Equal(begun) {
		t.Errorf("%v, want %v", got, begun)
	}
	for _, conf := range []string{`{}`, `x`, `{"patchbay/listed":7}`} {
		if _, ok := Listed([]byte(conf)); ok {
			t.Errorf("%s tells a moment", conf)
		}
	}
}
