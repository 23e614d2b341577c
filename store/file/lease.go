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

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/store"
	"github.com/patchbay-net/patchbay/store/typed"
)

// term is the file of a lease. A lease ends at the next boot, and no clock that a user can
// set counts.
type term struct {
	Boot string        `json:"boot"`
	Ends time.Duration `json:"ends"` // CLOCK_BOOTTIME
}

// left returns the remaining time of a lease; none if its file is damaged.
func (s *Store) left(path string) time.Duration {
	data, err := durable.Read(path)
	var t term
	if err != nil || json.Unmarshal(data, &t) != nil || t.Boot != s.boot {
		return 0
	}
	return max(t.Ends-clock.SinceBoot(), 0)
}

func (s *Store) leaseFile(id string) string { return filepath.Join(s.dir, "leases", id+ending) }

// lease is a lease that this process renews.
type lease struct {
	*typed.Kept
	s   *Store
	id  string
	ttl time.Duration
}

// Lease implements store.Store.
func (s *Store) Lease(ctx context.Context, ttl time.Duration) (store.Lease, error) {
	l := &lease{s: s, id: rand.Text(), ttl: max((ttl + time.Second - 1).Truncate(time.Second), time.Second)}
	if err := s.locked(ctx, l.write); err != nil {
		return nil, fmt.Errorf("begin lease: %w", err)
	}
	l.Kept = s.life.Keep(ctx, l.ttl, l.renew, func() {})
	return l, nil
}

func (l *lease) write() error {
	data, err := json.Marshal(term{Boot: l.s.boot, Ends: clock.SinceBoot() + l.ttl})
	if err != nil {
		return err
	}
	return durable.Write(l.s.leaseFile(l.id), data) // no fsync: after a crash of the machine the lease is over
}

// renew fails with ErrLeaseOver when another call has found the lease over.
func (l *lease) renew(ctx context.Context) error {
	return l.s.locked(ctx, func() error {
		if there, err := exists(l.s.leaseFile(l.id)); err != nil || !there {
			return errors.Join(err, store.ErrLeaseOver)
		}
		return l.write()
	})
}

// End implements store.Lease.
func (l *lease) End(ctx context.Context) error {
	if err := l.s.locked(ctx, func() error { return l.s.drop([]string{l.id}) }); err != nil {
		return fmt.Errorf("end lease: %w", err)
	}
	l.Over()
	return nil
}

// leaseID returns the id of a lease for the file of an object.
func (s *Store) leaseID(l store.Lease) (string, error) {
	if l == nil {
		return "", nil
	}
	ours, ok := l.(*lease)
	if !ok || ours.s != s {
		return "", errors.New("the lease belongs to another store")
	}
	if there, err := exists(s.leaseFile(ours.id)); err != nil || !there {
		return "", errors.Join(err, store.ErrLeaseOver)
	}
	return ours.id, nil
}

// expire removes the objects of leases that are over.
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

// drop removes the objects of leases, and then the leases: if it is killed in between, the
// next process finds the lease over.
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
		if err := durable.Remove(s.leaseFile(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// reap ends the leases of dead processes even without any calls.
func (s *Store) reap() {
	for s.life.Ctx().Err() == nil {
		next := s.nextEnd()
		if next == 0 {
			_ = s.locked(s.life.Ctx(), func() error { return nil }) // the next call reports what fails
		}
		clock.Sleep(s.life.Ctx(), max(next, 50*time.Millisecond))
	}
}

// nextEnd returns when the next lease may end. A lease that another process begins
// meanwhile is found within a second.
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
