// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/resident"
)

// errNoEvents is why a watch ends if the library gives no reason.
var errNoEvents = errors.New("the kernel tells no changes any more")

// watchAddresses signals when it begins to watch, and when an address of this node may have changed, until ctx ends.
func watchAddresses(ctx context.Context, moved chan struct{}) error {
	updates, done, lost := make(chan netlink.AddrUpdate), make(chan struct{}), make(chan error, 1)
	report := func(err error) {
		select {
		case lost <- err:
		default: // the first one is the cause
		}
	}
	defer close(done)
	if err := netlink.AddrSubscribeWithOptions(updates, done, netlink.AddrSubscribeOptions{ErrorCallback: report}); err != nil {
		return fmt.Errorf("watch addresses: %w", err)
	}
	defer func() {
		go func() {
			for range updates { // so that the library's goroutine can end
			}
		}()
	}()
	resident.Signal(moved)
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-updates:
			resident.Signal(moved)
			if !ok {
				report(nil) // if there was no cause
				return fmt.Errorf("watch addresses: %w", cmp.Or(<-lost, errNoEvents))
			}
		}
	}
}
