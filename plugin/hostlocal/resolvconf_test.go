// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// resolvConf may be a symbolic link, as /etc/resolv.conf often is. An ADD does not wait for the writer of a pipe.
func TestResolvConfIsAFile(t *testing.T) {
	dir := t.TempDir()
	file, link, fifo := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	for _, err := range []error{os.WriteFile(file, []byte("nameserver 10.0.0.1\n"), 0o600), os.Symlink(file, link), unix.Mkfifo(fifo, 0o600)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{file, link} {
		if dns, err := readResolvConf(path); err != nil || len(dns.Nameservers) != 1 {
			t.Errorf("%s: %+v %v", path, dns, err)
		}
	}
	for _, path := range []string{fifo, dir, "/dev/zero"} {
		if _, err := readResolvConf(path); err == nil {
			t.Errorf("%s is read", path)
		}
	}
}
