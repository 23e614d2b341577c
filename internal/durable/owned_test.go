// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestOthers(t *testing.T) {
	for _, c := range []struct {
		uid, gid, mode uint32
		fix            string
	}{
		{0, 0, 0o644, ""},
		{0, 0, 0o664, ""},
		{uint32(os.Geteuid()), 0, 0o600, ""},
		{12345, 0, 0o600, "chown root"},
		{0, 12345, 0o640, ""},
		{0, 12345, 0o660, "chmod g-w"},
		{0, 0, 0o666, "chmod go-w"},
		{0, 0, 0o1777, "chmod go-w"},
	} {
		o := others("/x", &unix.Stat_t{Uid: c.uid, Gid: c.gid, Mode: c.mode})
		if c.fix == "" {
			if o != nil {
				t.Errorf("%+v: %v", c, o)
			}
			continue
		}
		if o == nil || o.Fix() != c.fix+" /x" || !strings.HasPrefix(o.Error(), "/x: ") {
			t.Errorf("%+v: %v", c, o)
		}
	}
}

func TestCheckOwned(t *testing.T) {
	path := t.TempDir() + "/f"
	if err := CheckOwned(path); err != nil {
		t.Error(err)
	}
	if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chmod(path, 0o606)); err != nil {
		t.Fatal(err)
	}
	var o *OthersError
	if err := CheckOwned(path); !errors.As(err, &o) || !strings.Contains(err.Error(), "everybody may write to it (mode 0606)") {
		t.Error(err)
	}
}

// In a user namespace, the owner of root's files is not known, so no user is named.
func TestOwnerInAUserNamespace(t *testing.T) {
	if !everyUser("         0          0 4294967295\n") || everyUser("         0       1000          1\n") {
		t.Error("uid_map was read wrongly")
	}
	if text, err := os.ReadFile("/proc/self/uid_map"); err != nil || strings.Contains(user(overflow), "65534") != everyUser(string(text)) {
		t.Errorf("%s with %s %v", user(overflow), text, err)
	}
	if user(1000) != "user 1000" {
		t.Error(user(1000))
	}
}
