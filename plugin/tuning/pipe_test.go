// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package tuning

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/spec"
)

// An ADD does not wait if the allow list is a pipe to which nobody writes. Nothing is allowed then.
func TestPipeAsAllowList(t *testing.T) {
	w := newWorld(t)
	dir := filepath.Join(w.data, "etc/tuning")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "allowlist.conf"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := w.call(spec.Add, `,"sysctl":{"net.ipv4.conf.IFNAME.arp_notify":"1"}}`, options{}); err == nil {
		t.Error("an allow list that cannot be read allows everything")
	}
}
