// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"hash/fnv"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/paths"
)

// To look for connections of a former pod takes 6 ms and more, because the kernel walks all of
// connection tracking. So a DEL notes which addresses pods had, and an ADD looks only if its address is
// noted. The file has one byte for each hash of an address, so it does not grow. It goes at a boot, as
// the connections do.
const formerSlots = 1 << 16

func formerFile(p paths.Paths) string { return filepath.Join(p.Run, "policy.former") }

func slotOf(a netip.Addr) int64 {
	h := fnv.New64a()
	b := a.As16()
	_, _ = h.Write(b[:])
	return int64(h.Sum64() % formerSlots)
}

// noteFormer notes that pods had these addresses.
func noteFormer(p paths.Paths, addrs []netip.Addr) error {
	if len(addrs) == 0 {
		return nil
	}
	if err := durable.MakeDir(p.Run); err != nil {
		return err
	}
	return mark(p, os.O_CREATE, addrs, 1)
}

// hadFormer reports whether a pod may have had one of these addresses. If the file cannot be read, it
// returns true.
func hadFormer(p paths.Paths, addrs []netip.Addr) bool {
	f, err := os.OpenFile(formerFile(p), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	defer f.Close() //nolint:errcheck // read only
	for _, a := range addrs {
		var b [1]byte
		if _, err := f.ReadAt(b[:], slotOf(a)); b[0] != 0 || err != nil && !errors.Is(err, io.EOF) {
			return true
		}
	}
	return false
}

// forgetFormer notes that no connection of a former pod with these addresses is left.
func forgetFormer(p paths.Paths, addrs []netip.Addr) error { return mark(p, 0, addrs, 0) }

func mark(p paths.Paths, flag int, addrs []netip.Addr, value byte) error {
	f, err := os.OpenFile(formerFile(p), os.O_WRONLY|unix.O_NOFOLLOW|flag, 0o600)
	if err != nil {
		return err
	}
	errs := make([]error, 0, len(addrs)+1)
	for _, a := range addrs {
		_, err := f.WriteAt([]byte{value}, slotOf(a))
		errs = append(errs, err)
	}
	return errors.Join(append(errs, f.Close())...)
}
