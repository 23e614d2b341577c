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

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/store"
	"github.com/patchbay-net/patchbay/store/typed"
)

// Watch reads the log. inotify(7) only triggers a look.
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
		b := newNotifier(ctx, filepath.Join(t.dir, "log"))
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

// from returns the number of a revision, if it belongs to this store's history.
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

// next waits for the change that follows a number. A torn change counts as one that was
// removed: the objects hold the state.
func (s *Store) next(ctx context.Context, after int64, b *notifier) (change, error) {
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
			c, err = s.readLog(after + 1) // it was written meanwhile, or was removed, or the store was replaced
		}
		if errors.Is(err, errTorn) || errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: %w", store.ErrCompacted, err)
		}
		return c, err
	}
	return change{}, ctx.Err()
}

// notifier wakes a watcher when a change may have been written.
type notifier struct {
	f    *os.File // an inotify instance, or nil if none is available
	stop func() bool
}

// every and everyWithoutNotifier are how often a watcher looks without a notification: for
// file systems that do not deliver all of them, and if no inotify instance is available.
const every, everyWithoutNotifier = 5 * time.Second, 100 * time.Millisecond

func newNotifier(ctx context.Context, dir string) *notifier {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return &notifier{}
	}
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_MOVED_TO); err != nil {
		_ = unix.Close(fd)
		return &notifier{}
	}
	f := os.NewFile(uintptr(fd), "inotify")
	return &notifier{f, context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })}
}

// wait returns after a write, when ctx ends, or when the next look is due.
func (b *notifier) wait(ctx context.Context) {
	if b.f == nil {
		clock.Sleep(ctx, everyWithoutNotifier)
		return
	}
	var events [4096]byte
	_ = b.f.SetReadDeadline(time.Now().Add(every))
	if ctx.Err() == nil { // else the deadline above would hide the one set at the end of ctx
		_, _ = b.f.Read(events[:])
	}
}

func (b *notifier) close() {
	if b.f != nil {
		b.stop()
		_ = b.f.Close()
	}
}
