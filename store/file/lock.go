// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package file

import (
	"context"
	"path/filepath"

	"github.com/patchbay-net/patchbay/internal/durable"
)

// locked runs f under the lock: no other goroutine or process reads or writes meanwhile,
// and f sees no incomplete change and no lease that is over.
func (s *Store) locked(ctx context.Context, f func() error) error {
	ctx, done := s.life.Until(ctx)
	defer done()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	unlock, err := durable.Lock(ctx, filepath.Join(s.dir, "lock")) // each holder keeps it only for a short time
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.settle(); err != nil {
		return err
	}
	if err := s.expire(); err != nil {
		return err
	}
	return f()
}
