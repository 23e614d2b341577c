// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// A directory to which a group other than root's and ours may write can be changed by another user.
func TestGroupWritable(t *testing.T) {
	other := uint32(os.Getegid()) + 12345
	for _, c := range []struct {
		mode, gid uint32
		ours      bool
	}{
		{0o775, other, false}, {0o770, other, false}, {0o755, other, true}, {0o700, other, true},
		{0o775, 0, true}, {0o775, uint32(os.Getegid()), true}, {0o777, 0, false},
	} {
		stat := func(_ string, st *unix.Stat_t) error {
			*st = unix.Stat_t{Mode: unix.S_IFDIR | c.mode, Gid: c.gid}
			return nil
		}
		if err := check("/dir", stat); (err == nil) != c.ours || err != nil && !errors.Is(err, ErrNotOurs) {
			t.Errorf("mode %o, group %d: %v", c.mode, c.gid, err)
		}
	}
}
