// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/ipam"
)

// A file that this process may not read is another owner's reservation, even if the index shows its address as free.
func TestUnreadableFile(t *testing.T) {
	b := newBed(t, Set(t, "10.1.0.0/29"))
	b.add("c1", "10.1.0.2")
	tx := b.begin(ipam.Write)
	defer tx.Close()
	path := filepath.Join(b.dir, "10.1.0.3")
	if err := errors.Join(os.WriteFile(path, []byte("other\r\neth0"), 0o600), os.Chmod(path, 0)); err != nil {
		t.Fatal(err)
	}
	var ok bool
	var err error
	asOwner(t, func() { ok, err = tx.Reserve(eth0("c2"), netip.MustParseAddr("10.1.0.3")) })
	if ok || !errors.Is(err, fs.ErrPermission) {
		t.Errorf("%v, %v", ok, err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "other\r\neth0" || len(b.warns) > 0 {
		t.Errorf("%q, %v, %q", text, err, b.warns)
	}
}

// asOwner runs fn without the capabilities that give access to every file.
func asOwner(t *testing.T, fn func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var all [2]unix.CapUserData
	if err := unix.Capget(&header, &all[0]); err != nil {
		t.Fatal(err)
	}
	fewer := all
	fewer[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
	if err := unix.Capset(&header, &fewer[0]); err != nil {
		t.Fatal(err)
	}
	fn()
	if err := unix.Capset(&header, &all[0]); err != nil {
		t.Fatal(err)
	}
}
