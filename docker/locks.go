// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"fmt"
	"sync"
)

// locks are mutexes with names, which exist only while they are used. The zero value is
// ready.
type locks struct {
	mu  sync.Mutex
	all map[string]*named
}

type named struct {
	busy chan struct{} // holds one token while the lock is taken
	uses int           // number of holders and waiters
}

// take waits for a name's lock until ctx ends.
func (l *locks) take(ctx context.Context, name string) (release func(), err error) {
	l.mu.Lock()
	if l.all == nil {
		l.all = make(map[string]*named)
	}
	n := l.all[name]
	if n == nil {
		n = &named{busy: make(chan struct{}, 1)}
		l.all[name] = n
	}
	n.uses++
	l.mu.Unlock()
	select {
	case n.busy <- struct{}{}:
		return func() { <-n.busy; l.leave(name, n) }, nil
	case <-ctx.Done():
		l.leave(name, n)
		return nil, fmt.Errorf("wait for the previous call: %w", ctx.Err())
	}
}

func (l *locks) leave(name string, n *named) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n.uses--; n.uses == 0 {
		delete(l.all, name)
	}
}
