// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/flock"
	"github.com/patchbay-net/patchbay/internal/paths"
)

// The log of a keeper outside systemd's journal is in a file system in memory, and each renewal is a
// line. So the file is limited, and beside it there is only the one before.
const (
	keeperLog  = "keeper.log"
	keptLog    = ".1"    // suffix of the file before
	logLimit   = 1 << 20 // bytes
	openAppend = os.O_WRONLY | os.O_CREATE | os.O_APPEND | unix.O_NOFOLLOW
)

// openLog opens the log file of a keeper. It keeps the file of the last keeper.
func openLog() (*os.File, error) {
	run := paths.Default().Run
	if err := durable.MakeDir(run, "dhcp"); err != nil {
		return nil, err
	}
	return nextLog(filepath.Join(run, "dhcp", keeperLog))
}

// nextLog begins a file, and keeps the one that was there.
func nextLog(path string) (*os.File, error) {
	if err := os.Rename(path, path+keptLog); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return os.OpenFile(path, openAppend|os.O_TRUNC, 0o600)
}

// limitedLog writes to the file that openLog opened as a process's standard error. When the file is
// full, another one takes its place.
type limitedLog struct {
	path    string
	fd      int
	written int64
	limit   int64
}

// limited returns a log that is limited if it is a keeper's file, and otherwise log itself.
func limited(log io.Writer) io.Writer {
	f, ok := log.(*os.File)
	path := filepath.Join(paths.Default().Run, "dhcp", keeperLog)
	if !ok || !isFile(f, path) {
		return log
	}
	return &limitedLog{path: path, fd: int(f.Fd()), limit: logLimit}
}

func isFile(f *os.File, path string) bool { return flock.IsAt(int(f.Fd()), 0, path) }

func (l *limitedLog) Write(p []byte) (int, error) {
	n, err := unix.Write(l.fd, p)
	if l.written += int64(n); err == nil && l.written >= l.limit {
		l.written, err = 0, l.turn()
	}
	return n, err
}

// turn puts the next file in the place of the full one. What the runtime prints, such as a panic, goes
// there too.
func (l *limitedLog) turn() error {
	next, err := nextLog(l.path)
	if err != nil {
		return fmt.Errorf("begin the next log: %w", err)
	}
	defer next.Close() //nolint:errcheck // fd is a copy
	return unix.Dup3(int(next.Fd()), l.fd, unix.O_CLOEXEC)
}
