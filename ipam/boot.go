// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/durable"
)

// Boot identifies the current boot of the node. With the zero value, no reservation counts as
// one of an earlier boot.
type Boot struct {
	ID    string    // the kernel's random boot id
	Since time.Time // every file written in this boot has this mtime or a later one; zero if not known
}

// ReadBoot reads the boot id and the uptime, and the mtime of procfs. proc is the path of procfs
// ("/proc").
func ReadBoot(proc string) (Boot, error) {
	id, err := clock.BootID(proc)
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

// bootMargin is how far the two estimates of the boot time may differ. If they differ more, the
// clock was set, and since subtracts setMargin: an operator may also have set the clock back, for
// example to correct the time zone.
const (
	bootMargin = time.Minute
	setMargin  = 24 * time.Hour
)

// since returns a time before which no file of this boot was written. The current clock minus the
// uptime is the boot time, unless the clock was set meanwhile. A node without a battery clock
// boots in 1970, and a paused virtual machine resumes years later. Then files that were written
// before the clock was set would look older than the boot. So since has a second source: procfs
// was mounted early in this boot, and its mtime is the clock of that moment.
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
	text, err := durable.ReadProc(filepath.Join(proc, "uptime"))
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(text), " ")
	seconds, err := strconv.ParseFloat(strings.TrimSpace(first), 64)
	return time.Duration(seconds * float64(time.Second)), err
}

// mark returns a hash of the boot id; the index stores this hash. 0 means that the boot is not known.
func (b Boot) mark() uint64 {
	if b.ID == "" {
		return 0
	}
	sum := sha256.Sum256([]byte(b.ID))
	return binary.LittleEndian.Uint64(sum[:]) | 1
}

// bootAttr is an extended attribute of an address file. It holds the id of the boot in which this
// program wrote the file. The index is lost with /run at a reboot, and the file's time proves
// nothing about the minute before the boot, when the node crashed. The reference ignores
// attributes.
const bootAttr = "user.patchbay.boot"

// writeBoot stores a boot id in a file. A file system without attributes causes no error, but an id
// of an earlier boot must not stay.
func writeBoot(fd int, id string) error {
	if id != "" && unix.Fsetxattr(fd, bootAttr, []byte(id), 0) == nil {
		return nil
	}
	err := unix.Fremovexattr(fd, bootAttr)
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}

// readBoot returns the mark of the boot that a file names, or 0.
func readBoot(fd int) uint64 {
	var id [64]byte
	n, err := unix.Fgetxattr(fd, bootAttr, id[:])
	if err != nil {
		return 0
	}
	return Boot{ID: string(id[:n])}.mark()
}

// before reports whether a reservation was made in an earlier boot. If the index knows the boot
// that made the reservation, before compares boots. If only a scan found the file, before
// compares the file's time.
func (b Boot) before(mark uint64, since time.Time) bool {
	if b.ID == "" {
		return false
	}
	if mark != 0 {
		return mark != b.mark()
	}
	return since.Before(b.Since)
}
