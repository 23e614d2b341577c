// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package life

import (
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/netns"
)

// Mark identifies a namespace. A later namespace at the same path has another mark. An inode
// number is not enough: the kernel uses a number again at once, and each boot starts with the
// same numbers. So the mark includes the inode's time and the boot. The time may come from
// another inode of the same namespace, so the cookie decides if it is known.
type Mark struct {
	Dev    uint64 `json:"dev"`
	Ino    uint64 `json:"ino"`
	Since  int64  `json:"since"`            // time of the inode, in nanoseconds; no program can set it
	Cookie uint64 `json:"cookie,omitempty"` // see netns.NS.Cookie
	Boot   string `json:"boot,omitempty"`

	// Place says where the path was looked up. In another place, the same path may lead to
	// another namespace.
	Place *Place `json:"place,omitempty"`
}

// MarkOf returns the mark of the namespace at path. If there is no namespace, MarkOf returns nil.
// If the boot is not known, bootID is empty. cookie reads the namespace's cookie: CookieOf, or a
// cheaper function of a caller that has a socket there.
func MarkOf(path, bootID string, cookie func(path string) uint64) *Mark {
	m := markOf(path, bootID)
	if m != nil {
		m.Place, m.Cookie = placeOf(path), cookie(path)
	}
	return m
}

// CookieOf returns the cookie of the namespace at path. If it cannot read the cookie, it returns 0,
// and comparing marks is less certain.
func CookieOf(path string) (cookie uint64) {
	ns, err := netns.Open(path)
	if err != nil {
		return 0
	}
	defer ns.Close() //nolint:errcheck // read only
	cookie, _ = ns.Cookie()
	return cookie
}

func markOf(path, bootID string) *Mark {
	var sfs unix.Statfs_t
	var st unix.Stat_t
	if path == "" || unix.Statfs(path, &sfs) != nil || sfs.Type != unix.NSFS_MAGIC || unix.Stat(path, &st) != nil {
		return nil
	}
	return &Mark{Dev: uint64(st.Dev), Ino: st.Ino, Since: st.Ctim.Nano(), Boot: bootID} //nolint:unconvert // Dev is 32 bits wide on some architectures
}

// Same reports whether both marks certainly identify the same namespace.
func (m *Mark) Same(o *Mark) bool {
	return m != nil && o != nil && m.Dev == o.Dev && m.Ino == o.Ino && m.Since == o.Since && m.Boot == o.Boot
}

// before reports whether m certainly comes from an earlier boot than bootID.
func (m *Mark) before(bootID string) bool {
	return m != nil && m.Boot != "" && bootID != "" && m.Boot != bootID
}

// decides compares the cookie of m with the cookie of the open namespace ns. m must come from the
// current boot. If one of the cookies is missing, known is false.
func (m *Mark) decides(ns *netns.NS) (same, known bool) {
	if m == nil || m.Cookie == 0 || m.Boot == "" { // cookies start again at each boot
		return false, false
	}
	cookie, err := ns.Cookie()
	return cookie == m.Cookie, err == nil
}

// decidesAt works like decides for the namespace at path. If path no longer exists because its
// process has ended, the namespaces are certainly not the same.
func (m *Mark) decidesAt(path string) (same, known bool) {
	ns, err := netns.Open(path)
	if err != nil {
		return false, netns.Gone(err)
	}
	defer ns.Close() //nolint:errcheck // read only
	return m.decides(ns)
}
