// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package flock_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/flock"
)

var create = flock.Options{Create: 0o600}

func at(t *testing.T, path string, o flock.Options) int {
	t.Helper()
	fd, err := flock.At(t.Context(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

func closeFD(t *testing.T, fd int) {
	t.Helper()
	if err := unix.Close(fd); err != nil {
		t.Error(err)
	}
}

func TestLocksExclude(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	shared := flock.Options{Shared: true}
	for name, c := range map[string]struct {
		first, second flock.Options
		held          bool
	}{
		"exclusive beside exclusive": {create, create, true},
		"shared beside exclusive":    {create, shared, true},
		"exclusive beside shared":    {shared, create, true},
		"shared beside shared":       {shared, shared, false},
	} {
		closeFD(t, at(t, path, create))
		first := at(t, path, c.first)
		fd, held, err := flock.Try(path, c.second)
		if held != c.held || err != nil || held != (fd < 0) {
			t.Errorf("%s: %d, %v, %v", name, fd, held, err)
		}
		if held, err := flock.TryOn(first, c.first.Shared); held || err != nil {
			t.Errorf("%s: the first lock is not its own: %v, %v", name, held, err)
		}
		if fd >= 0 {
			closeFD(t, fd)
		}
		closeFD(t, first)
	}
}

// An error names the process that holds the lock, and what ended the wait.
func TestHeld(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	defer unix.Close(at(t, path, create)) //nolint:errcheck // a test
	why := errors.New("the test wants no more")
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	for name, c := range map[string]struct {
		ctx  context.Context
		o    flock.Options
		want error
	}{
		"patience ends":    {t.Context(), flock.Options{Patience: time.Millisecond}, context.DeadlineExceeded},
		"the context ends": {ended, flock.Options{}, why},
	} {
		fd, err := flock.At(c.ctx, path, c.o)
		var held *flock.LockedError
		if !errors.As(err, &held) || !errors.Is(err, c.want) || !strings.Contains(held.Holder, strconv.Itoa(os.Getpid())) || fd >= 0 {
			t.Errorf("%s: %d, %v", name, fd, err)
		}
	}
	if fd, held, err := flock.Try(path, flock.Options{Patience: time.Millisecond}); fd >= 0 || !held || err != nil {
		t.Errorf("%d, %v, %v", fd, held, err)
	}
}

func TestFilesThatAreNotLocked(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "lock"), filepath.Join(dir, "link")
	if fd, held, err := flock.Try(path, flock.Options{}); fd >= 0 || held || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %d, %v, %v", fd, held, err)
	}
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if fd, err := flock.At(t.Context(), link, create); fd >= 0 || !errors.Is(err, unix.ELOOP) {
		t.Errorf("a link: %d, %v", fd, err)
	}
	if err := flock.On(t.Context(), -1, flock.Options{}); err == nil {
		t.Error("no file is locked")
	}
}

// A path may be relative to an open directory, whatever leads to the directory now.
func TestRelative(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	open, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close() //nolint:errcheck // a test
	if err := os.Rename(dir, dir+"2"); err != nil {
		t.Fatal(err)
	}
	fd := at(t, "lock", flock.Options{Create: 0o750, Dir: int(open.Fd())})
	defer closeFD(t, fd)
	fi, err := os.Stat(filepath.Join(dir+"2", "lock"))
	if err != nil || fi.Mode() != 0o750 || !flock.IsAt(fd, int(open.Fd()), "lock") || flock.IsAt(fd, 0, filepath.Join(dir, "lock")) {
		t.Errorf("%v, %v", fi, err)
	}
}

// The holder removes the file. A process that waited for it then locks the next file, and never are two locks held
// at once.
func TestRemovedWhileOthersWait(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	var all sync.WaitGroup
	inside := make(chan bool, 1)
	for range 8 {
		all.Go(func() {
			for range 50 {
				fd, err := flock.At(t.Context(), path, create)
				if err != nil {
					t.Error(err)
					return
				}
				select {
				case inside <- true:
				default:
					t.Error("two have the lock")
				}
				if !flock.IsAt(fd, 0, path) {
					t.Error("locked is a file that is gone")
				}
				<-inside
				if err := errors.Join(os.Remove(path), unix.Close(fd)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}
