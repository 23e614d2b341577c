// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/boot"
)

// Boot is the run of the kernel we live in. The zero value knows nothing and
// takes no reservation for one of an earlier boot.
type Boot struct {
	ID    string    // the kernel's random boot id
	Since time.Time // when it started, by today's clock
}

// ReadBoot reads the boot id and the uptime from procfs at proc ("/proc").
func ReadBoot(proc string) (Boot, error) {
	id, err := boot.ID(proc)
	if err != nil {
		return Boot{}, err
	}
	up, err := readSmall(filepath.Join(proc, "uptime"))
	if err != nil {
		return Boot{}, fmt.Errorf("read uptime: %w", err)
	}
	first, _, _ := strings.Cut(string(up), " ")
	seconds, err := strconv.ParseFloat(strings.TrimSpace(first), 64)
	if err != nil {
		return Boot{}, fmt.Errorf("read uptime: %w", err)
	}
	since := time.Now().Add(-time.Duration(seconds * float64(time.Second)))
	return Boot{ID: id, Since: since}, nil
}

// readSmall reads a file of one line, without the detour of os.File through the
// poller.
func readSmall(path string) ([]byte, error) {
	fd, err := openat(unix.AT_FDCWD, path, unix.O_RDONLY, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer closeFD(fd)
	buf := make([]byte, 256)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return buf[:n], nil
}

// mark is the boot id as the index keeps it; 0 is "not known".
func (b Boot) mark() uint64 {
	if b.ID == "" {
		return 0
	}
	sum := sha256.Sum256([]byte(b.ID))
	return binary.LittleEndian.Uint64(sum[:]) | 1
}

// bootMargin is how far the clock and the uptime may disagree.
const bootMargin = 10 * time.Second

// before says whether a reservation is of an earlier boot: by the boot it was
// made in, or, for one the index only found, by the time of its file.
func (b Boot) before(mark uint64, since time.Time) bool {
	if b.ID == "" {
		return false
	}
	if mark != 0 {
		return mark != b.mark()
	}
	return since.Add(bootMargin).Before(b.Since)
}
