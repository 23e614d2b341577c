// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package file

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/patchbay-net/patchbay/internal/atomicfile"
	"github.com/patchbay-net/patchbay/internal/boot"
	"github.com/patchbay-net/patchbay/internal/sleep"
	"github.com/patchbay-net/patchbay/store"
	"github.com/patchbay-net/patchbay/store/typed"
)

// term is the file of a lease. It is over when the machine boots, whatever a clock
// says that somebody may set.
type term struct {
	Boot string        `json:"boot"`
	Ends time.Duration `json:"ends"` // CLOCK_BOOTTIME
}

// left is how long a lease has to go; not at all when its file is damaged.
func (s *Store) left(path string) time.Duration {
	data, err := atomicfile.Read(path)
	var t term
	if err != nil || json.Unmarshal(data, &t) != nil || t.Boot != s.boot {
		return 0
	}
	return max(t.Ends-boot.Since(), 0)
}

func (s *Store) leaseFile(id string) string { return filepath.Join(s.dir, "leases", id+ending) }

// lease is one that this process keeps.
type lease struct {
	*typed.Kept
	s   *Store
	id  string
	ttl time.Duration
}

// Lease is store.Store's.
func (s *Store) Lease(ctx context.Context, ttl time.Duration) (store.Lease, error) {
	l := &lease{s: s, id: rand.Text(), ttl: max((ttl + time.Second - 1).Truncate(time.Second), time.Second)}
	if err := s.locked(ctx, l.write); err != nil {
		return nil, fmt.Errorf("begin lease: %w", err)
	}
	l.Kept = s.life.Keep(ctx, l.ttl, l.renew, func() {})
	return l, nil
}

func (l *lease) write() error {
	data, err := json.Marshal(term{Boot: l.s.boot, Ends: boot.Since() + l.ttl})
	if err != nil {
		return err
	}
	return atomicfile.Write(l.s.leaseFile(l.id), data) // after a crash of the machine it is over: no fsync
}

// renew fails with ErrLeaseOver when somebody found that the lease has ended.
func (l *lease) renew(ctx context.Context) error {
	return l.s.locked(ctx, func() error {
		if there, err := exists(l.s.leaseFile(l.id)); err != nil || !there {
			return errors.Join(err, store.ErrLeaseOver)
		}
		return l.write()
	})
}

// End is store.Lease's.
func (l *lease) End(ctx context.Context) error {
	if err := l.s.locked(ctx, func() error { return l.s.drop([]string{l.id}) }); err != nil {
		return fmt.Errorf("end lease: %w", err)
	}
	l.Over()
	return nil
}

// leaseID is what the file of an object says of its lease.
func (s *Store) leaseID(l store.Lease) (string, error) {
	if l == nil {
		return "", nil
	}
	ours, ok := l.(*lease)
	if !ok || ours.s != s {
		return "", errors.New("the lease is of another store")
	}
	if there, err := exists(s.leaseFile(ours.id)); err != nil || !there {
		return "", errors.Join(err, store.ErrLeaseOver)
	}
	return ours.id, nil
}

// expire removes what hangs on leases that are over.
func (s *Store) expire() error {
	names, err := readNames(filepath.Join(s.dir, "leases"))
	if err != nil {
		return err
	}
	var over []string
	for _, name := range names {
		if id, ok := keyOf(name); ok && s.left(s.leaseFile(id)) == 0 {
			over = append(over, id)
		}
	}
	if len(over) == 0 {
		return nil
	}
	return s.drop(over)
}

// drop removes the objects of leases, and then the leases: whoever is killed in
// between leaves a lease that is over to the next.
func (s *Store) drop(leases []string) error {
	for _, table := range typed.Names() {
		err := s.each(table, "", func(key string, r row) error {
			if r.Lease == "" || !slices.Contains(leases, r.Lease) {
				return nil
			}
			_, err := s.commit(change{Table: table, Key: key, Gone: true})
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, id := range leases {
		if err := atomicfile.Remove(s.leaseFile(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// reap ends leases of processes that are gone, when nobody asks for anything.
func (s *Store) reap() {
	for s.life.Ctx().Err() == nil {
		next := s.nextEnd()
		if next == 0 {
			_ = s.locked(s.life.Ctx(), func() error { return nil }) // whoever asks next is told of what fails
		}
		sleep.For(s.life.Ctx(), max(next, 50*time.Millisecond))
	}
}

// nextEnd is when the next lease may end. One that somebody begins meanwhile is
// not missed for longer than a second.
func (s *Store) nextEnd() time.Duration {
	names, _ := readNames(filepath.Join(s.dir, "leases"))
	next := time.Second
	for _, name := range names {
		if id, ok := keyOf(name); ok {
			next = min(next, s.left(s.leaseFile(id)))
		}
	}
	return next
}
