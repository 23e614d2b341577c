// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"context"
	"errors"

	"github.com/patchbay-net/patchbay/internal/dhcprpc"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/kernel"
)

// gc releases the leases of attachments that are not valid. gc finds them by our records,
// whichever keeper they name. Our keeper also knows leases that it got for the reference's
// plugin.
func gc(ctx context.Context, r *plugin.Request) error {
	err := kernel.Of(r).Sweep(ctx, r, func(rec *record.Record) error { return releaseRecorded(ctx, r, rec) })
	if _, ok := r.Valid(); !ok {
		return err
	}
	return errors.Join(err, collect(ctx, r))
}

func releaseRecorded(ctx context.Context, r *plugin.Request, rec *record.Record) error {
	args := &dhcprpc.Args{ContainerID: rec.ContainerID, Netns: rec.NetNS, IfName: rec.IfName, StdinData: r.Config}
	return release(ctx, r, socketOf(r, rec), args)
}

// collect passes the GC to the configured keeper, if the keeper is ours.
func collect(ctx context.Context, r *plugin.Request) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	k, err := dhcprpc.Dial(ctx, socketOf(r, nil))
	if errors.Is(err, dhcprpc.ErrDial) {
		return nil
	}
	if err != nil {
		return err
	}
	defer k.Close()
	if !k.Ours {
		return nil
	}
	_, err = k.Call(ctx, dhcprpc.Collect, &dhcprpc.Args{StdinData: r.Config})
	return err
}
