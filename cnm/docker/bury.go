// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"fmt"

	"github.com/patchbay-net/patchbay/cnm/docker/state"
	"github.com/patchbay-net/patchbay/netns"
)

// bury removes an endpoint whose network's file was lost, by the configurations
// that its results were cached with. What has no result yet is `patchbay gc`'s.
func (d *Driver) bury(ctx context.Context, e *state.Endpoint) error {
	d.opts.Log("endpoint %.12s: what this driver knew of its network is lost: removing it by cached results", e.ID)
	errs := []error{d.delCached(ctx, ports, e), d.delCached(ctx, post, e), d.takeBack(e), d.delCached(ctx, hold, e)}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("endpoint %.12s stays until it can be removed: %w", e.ID, err)
	}
	if err := netns.Delete(e.Hold); err != nil {
		return err
	}
	return d.store.DropEndpoint(e.ID)
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
