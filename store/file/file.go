// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package file keeps a store in a directory, for one host and all its processes. It is the
// default store.
//
//	v1/lock             flock(2) of the process that reads or writes
//	v1/log/17           the 17th change, as JSON: the newest ones, for watchers
//	v1/networks/x.json  an object, with the number of its last change
//	v1/leases/3f….json  a lease, with its end
//	v1/history          a random name: another name means another store
//
// A change is made when its file in the log has its name; the object's file follows. The
// next process that takes the lock repeats the newest change if the object lacks it. So a
// process may be killed at any point. Both files are on disk (fsync) before a call returns.
package file

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/store/typed"
)

// version is the layout of the directory. A newer layout has a directory of its own.
const version = "v1"

// Options may be left at zero.
type Options struct {
	Keep int    // changes that watchers can look back; 0: 1024
	Proc string // procfs; "": /proc
}

// Store is an open directory.
type Store struct {
	typed.Tables
	dir  string
	keep int
	boot string

	turn    chan struct{} // one goroutine of this process at a time waits for the lock
	head    int64         // the newest known change; under the lock
	settled int64         // the change up to which objects are certain; under the lock

	life *typed.Life
}

// Open opens a directory. If it does not exist Open creates it, for root alone. If another
// user owns it or may write to it, the error wraps durable.ErrNotOurs.
func Open(dir string, o Options) (*Store, error) {
	if o.Keep == 0 {
		o.Keep = 1024
	}
	if o.Proc == "" {
		o.Proc = "/proc"
	}
	s := &Store{dir: filepath.Join(dir, version), keep: o.Keep, turn: make(chan struct{}, 1), life: typed.NewLife()}
	s.Rows = func(table string) typed.Rows { return rows{s, table} }
	for _, below := range append(typed.Names(), "log", "leases") {
		if err := durable.MakeDir(dir, version, below); err != nil {
			return nil, fmt.Errorf("open store %s: %w", dir, err)
		}
	}
	var err error
	if s.boot, err = clock.BootID(o.Proc); err != nil {
		return nil, fmt.Errorf("open store %s: %w", dir, err)
	}
	if err := s.start(); err != nil {
		return nil, errors.Join(fmt.Errorf("open store %s: %w", dir, err), s.Close())
	}
	return s, nil
}

// start removes what killed processes left, and starts to reap leases.
func (s *Store) start() error {
	ctx, cancel := context.WithTimeout(s.life.Ctx(), openTimeout)
	defer cancel()
	if err := s.locked(ctx, s.sweep); err != nil {
		return err
	}
	s.life.Work.Go(s.reap)
	return nil
}

// openTimeout is how long Open waits for a process that holds the lock. A working process
// holds it for milliseconds.
const openTimeout = 30 * time.Second

// Close implements store.Store.
func (s *Store) Close() error {
	s.life.End()
	return nil
}
