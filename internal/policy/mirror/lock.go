// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"context"
	"os"
	"time"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/paths"
)

// Hold locks InForce for an agent whose first program is in force, and notes the time in the file.
func Hold(ctx context.Context, p paths.Paths) (release func(), err error) {
	release, err = durable.Lock(ctx, InForce(p))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	if err := os.Chtimes(InForce(p), now, now); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// AgentRuns reports whether an agent runs that has loaded a program.
func AgentRuns(p paths.Paths) bool { return durable.Locked(InForce(p)) }

// LockedSince returns when an agent last locked InForce.
func LockedSince(p paths.Paths) (time.Time, error) {
	info, err := os.Stat(InForce(p))
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}
