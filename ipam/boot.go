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
	Since time.Time // no file of this boot is older, by its mtime; zero when that is not known
}

// ReadBoot reads the boot id, the uptime and the age of procfs at proc ("/proc").
func ReadBoot(proc string) (Boot, error) {
	id, err := boot.ID(proc)
	if err != nil {
		return Boot{}, err
	}
	up, err := readUptime(proc)
	if err != nil {
		return Boot{}, fmt.Errorf("read uptime: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Stat(proc, &st); err != nil {
		return Boot{}, &fs.PathError{Op: "stat", Path: proc, Err: err}
	}
	return Boot{ID: id, Since: since(time.Now().Add(-up), time.Unix(st.Mtim.Unix()))}, nil
}

// How far the two views of the time of the boot may be apart, and what is taken off
// where they are further apart: a clock that is set once, from another time zone say,
// may have been set back before.
const (
	bootMargin = time.Minute
	setMargin  = 24 * time.Hour
)

// since is a time that no file of this boot is older than. Today's clock and the uptime
// tell when the node booted only if nobody set the clock meanwhile: a node without a
// clock of its own boots in 1970, and a virtual machine that was paused wakes up years
// later. What was written before looks older than the boot then. Procfs was mounted
// early in this boot and has the time of then.
func since(byUptime, mounted time.Time) time.Time {
	earlier, apart := byUptime, mounted.Sub(byUptime)
	if apart < 0 {
		earlier = mounted
	}
	if apart.Abs() > bootMargin {
		return earlier.Add(-setMargin)
	}
	return earlier.Add(-bootMargin)
}

func readUptime(proc string) (time.Duration, error) {
	text, err := readSmall(filepath.Join(proc, "uptime"))
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(text), " ")
	seconds, err := strconv.ParseFloat(strings.TrimSpace(first), 64)
	return time.Duration(seconds * float64(time.Second)), err
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

// before says whether a reservation is of an earlier boot: by the boot it was
// made in, or, for one the index only found, by the time of its file.
func (b Boot) before(mark uint64, since time.Time) bool {
	if b.ID == "" {
		return false
	}
	if mark != 0 {
		return mark != b.mark()
	}
	return since.Before(b.Since)
}
