// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
	policymirror "github.com/patchbay-net/patchbay/internal/policy/mirror"
	"github.com/patchbay-net/patchbay/internal/record"
)

// ClearNetworkPolicy removes everything that enforces network policies on this node. It runs when the
// agent is removed. It returns an error if an ADD or DEL keeps a pod's record all the time. One pass is
// not enough, because an ADD may have read the mirror before its removal, and closes its pod later.
func ClearNetworkPolicy(ctx context.Context, p paths.Paths) error {
	ctx, cancel := context.WithTimeout(ctx, clearTime)
	defer cancel()
	for quiet := 0; quiet < enoughPasses; {
		busy, err := policedBusy(p.Run)
		if err == nil {
			err = clearPolicies(ctx, p)
		}
		if err != nil {
			return err
		}
		if quiet++; busy {
			quiet = 0
		}
		if !clock.Sleep(ctx, clearPause) {
			return fmt.Errorf("remove network policies: %w: run it again", errBusy)
		}
	}
	return nil
}

// clearPolicies removes the mirror first, so that a new ADD closes nothing.
func clearPolicies(ctx context.Context, p paths.Paths) error {
	if err := policymirror.Remove(p); err != nil {
		return fmt.Errorf("remove network policies: %w", err)
	}
	fw := nft.Open(p.Run)
	defer fw.Close() //nolint:errcheck // committed
	e := enforce.New(fw, enforce.Options{KeepConnections: true})
	return e.Clear(ctx)
}

// policedBusy reports whether an ADD or DEL is using the record of a pod to which policies apply.
func policedBusy(run string) (busy bool, err error) {
	store := record.New(run)
	defer store.Close()
	records, _, err := store.ScanPlugin(policyPlugin)
	for _, r := range records {
		now, free, err := store.TryReadLocked(r.Network, r.Owner, r.Plugin, 0)
		if err != nil {
			return false, fmt.Errorf("remove network policies: %w", err)
		}
		if !free {
			return true, nil
		}
		if now != nil {
			store.Unlock(r.Network, r.Owner, r.Plugin)
		}
	}
	return false, err
}
