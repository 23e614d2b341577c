// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/sleep"
	"github.com/patchbay-net/patchbay/store"
	"github.com/patchbay-net/patchbay/store/typed"
)

// Watch reads the log. inotify(7) only says when to look.
func (t rows) Watch(ctx context.Context, after store.Revision) iter.Seq2[typed.Change, error] {
	return func(yield func(typed.Change, error) bool) {
		ctx, done := t.life.Until(ctx)
		defer done()
		at, err := t.from(ctx, after)
		if err != nil {
			if err = typed.Ended(ctx, err); err != nil {
				yield(typed.Change{}, err)
			}
			return
		}
		b := newBell(ctx, filepath.Join(t.dir, "log"))
		defer b.close()
		for ; ; at++ {
			c, err := t.next(ctx, at, b)
			if err != nil {
				if err = typed.Ended(ctx, err); err != nil {
					yield(typed.Change{}, err)
				}
				return
			}
			if c.Table == t.table && !yield(c.typed(), nil) {
				return
			}
		}
	}
}

// from is the number of a revision, if it is of this store's history.
func (s *Store) from(ctx context.Context, after store.Revision) (int64, error) {
	at, history, err := typed.OfHistory(after)
	if history == "" || err != nil {
		return at, err
	}
	return at, s.locked(ctx, func() error {
		now, err := s.history()
		if err == nil && now != history {
			err = fmt.Errorf("%w: it is of another history", store.ErrCompacted)
		}
		return err
	})
}

func (c change) typed() typed.Change {
	return typed.Change{Row: typed.Row{Key: c.Key, Data: c.Value, Revision: typed.Revision(c.Revision)}, Gone: c.Gone}
}

// next waits for the change that follows a number. A torn one is as good as one
// that is no longer there: the objects are what counts.
func (s *Store) next(ctx context.Context, after int64, b *bell) (change, error) {
	for ctx.Err() == nil {
		c, err := s.readLog(after + 1)
		if errors.Is(err, fs.ErrNotExist) {
			var newest int64
			newest, err = s.newestLog()
			switch {
			case err != nil:
				return c, err
			case newest == after, newest == 0:
				b.wait(ctx)
				continue
			}
			c, err = s.readLog(after + 1) // it came meanwhile, or was removed, or the store is another one now
		}
		if errors.Is(err, errTorn) || errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: %w", store.ErrCompacted, err)
		}
		return c, err
	}
	return change{}, ctx.Err()
}

// bell rings when something may have been written.
type bell struct {
	f    *os.File // an inotify instance, or nil when there is none to have
	stop func() bool
}

// every is how often a watcher looks without a ring: for file systems that do not
// ring for everybody, and when there is no inotify instance left for us.
const every, everyWithoutBell = 5 * time.Second, 100 * time.Millisecond

func newBell(ctx context.Context, dir string) *bell {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return &bell{}
	}
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_MOVED_TO); err != nil {
		_ = unix.Close(fd)
		return &bell{}
	}
	f := os.NewFile(uintptr(fd), "inotify")
	return &bell{f, context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })}
}

// wait returns when somebody wrote, ctx ended, or it is time to look anyway.
func (b *bell) wait(ctx context.Context) {
	if b.f == nil {
		sleep.For(ctx, everyWithoutBell)
		return
	}
	var events [4096]byte
	_ = b.f.SetReadDeadline(time.Now().Add(every))
	if ctx.Err() == nil { // or the deadline above hides that of its end
		_, _ = b.f.Read(events[:])
	}
}

func (b *bell) close() {
	if b.f != nil {
		b.stop()
		_ = b.f.Close()
	}
}
