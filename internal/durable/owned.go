// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// OthersError says that another user may change a file or directory.
type OthersError struct {
	path, who, fix string
}

// Error says who may change which file.
func (o *OthersError) Error() string { return o.path + ": " + o.who }

// Fix returns the command that takes the right away.
func (o *OthersError) Fix() string { return o.fix + " " + o.path }

// CheckOwned returns an *OthersError if another user than root or ours may change a file or
// directory. It follows links, and accepts a missing file.
func CheckOwned(path string) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return missing(path, err)
	}
	if o := others(path, &st); o != nil {
		return o
	}
	return nil
}

// others finds out whether another user may change a file.
func others(path string, st *unix.Stat_t) *OthersError {
	switch {
	case !trusted(st.Uid):
		return &OthersError{path, "it belongs to " + user(st.Uid), "chown root"}
	case st.Mode&0o002 != 0:
		return &OthersError{path, fmt.Sprintf("everybody may write to it (mode %#o)", st.Mode&0o7777), "chmod go-w"}
	case st.Mode&0o020 != 0 && !trustedGroup(st.Gid):
		return &OthersError{path, fmt.Sprintf("group %d may write to it (mode %#o)", st.Gid, st.Mode&0o7777), "chmod g-w"}
	}
	return nil
}

// overflow is the user as which a user namespace shows the users that it does not have.
const overflow = 65534

// user names the owner of a file. In a user namespace, root's files may seem to belong to nobody.
func user(uid uint32) string {
	if text, err := os.ReadFile("/proc/self/uid_map"); uid == overflow && err == nil && !everyUser(string(text)) {
		return "a user that this user namespace does not have, such as the host's root"
	}
	return fmt.Sprintf("user %d", uid)
}

// everyUser reports whether a uid_map is that of a namespace with all users, as of the host.
func everyUser(uidMap string) bool {
	return strings.Join(strings.Fields(uidMap), " ") == "0 0 4294967295"
}
