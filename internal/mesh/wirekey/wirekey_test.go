// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package wirekey

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A key is made once, with mode 0600 whatever the umask, and read again.
func TestOpen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "node")
	first, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	at, err := os.Stat(filepath.Join(dir, File))
	if err != nil || at.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", at, err)
	}
	again, err := Open(t.Context(), dir)
	if err != nil || *again != *first {
		t.Errorf("another key: %v", err)
	}
	must(t, os.Remove(filepath.Join(dir, File)))
	other, err := Open(t.Context(), dir)
	if err != nil || *other == *first {
		t.Errorf("the same key: %v", err)
	}
	if s := fmt.Sprintf("%v %+v %#v", *first, first, first.Private); strings.Contains(s, fmt.Sprint(first.Private[0], " ", first.Private[1])) {
		t.Errorf("printed: %s", s)
	}
}

func TestRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		mode os.FileMode
		want string
	}{
		"others":  {base64.StdEncoding.EncodeToString(make([]byte, 32)), 0o640, "others may have read"},
		"empty":   {"", 0o600, "has none"},
		"short":   {base64.StdEncoding.EncodeToString(make([]byte, 31)), 0o600, "has none"},
		"garbage": {"%", 0o600, "has none"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, File)
			must(t, os.WriteFile(path, []byte(tc.text), 0o600))
			must(t, os.Chmod(path, tc.mode))
			if _, err := Open(t.Context(), dir); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
			if data, err := os.ReadFile(path); err != nil || string(data) != tc.text {
				t.Errorf("it changed: %q, %v", data, err)
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
