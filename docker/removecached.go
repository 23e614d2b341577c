// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"fmt"

	"github.com/patchbay-net/patchbay/docker/state"
	"github.com/patchbay-net/patchbay/netns"
)

// removeByCache removes an endpoint whose network's file was lost: the results are cached
// with their configurations. An endpoint without a result is left to `patchbay gc`.
func (d *Driver) removeByCache(ctx context.Context, e *state.Endpoint) error {
	d.opts.Log("endpoint %.12s: its network's state is lost: removing it with its cached results", e.ID)
	errs := []error{d.delCached(ctx, ports, e), d.delCached(ctx, post, e), d.takeBack(e), d.delCached(ctx, hold, e)}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("endpoint %.12s is kept until it can be removed: %w", e.ID, err)
	}
	if err := netns.Delete(e.Hold); err != nil {
		return err
	}
	return d.store.Endpoints.Drop(e.ID)
}

func (d *Driver) delCached(ctx context.Context, p part, e *state.Endpoint) error {
	all, err := d.run[p].Attachments(e.ID)
	errs := []error{err}
	for i := range all {
		a := all[i].Attachment
		at, err := gone(e, state.Where{NetNS: a.NetNS})
		a.NetNS = at.NetNS
		errs = append(errs, err, d.run[p].DelCached(ctx, all[i].Network, a))
	}
	return errors.Join(errs...)
}
