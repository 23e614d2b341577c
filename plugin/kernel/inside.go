// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
)

// DelInside is the DEL of a chained plugin that works inside the container: it calls undo
// with the record (nil: none), if the namespace still exists, and then removes the record.
// A record or namespace that cannot be read must not keep a runtime from deleting the
// interface, with which the rest goes.
func DelInside(ctx context.Context, r *plugin.Request, name string, undo func(*nl.Conn, *record.Record) error) error {
	k := Of(r)
	rec, err := k.Records.Take(r.Network, r.Owner, name)
	if err != nil {
		Warn(r, err)
	}
	env, err := k.Env(r)
	if err != nil {
		Warn(r, err)
	} else if env.Sandbox != nil {
		if err := undo(env.Sandbox, rec); err != nil {
			return err
		}
	}
	return k.Records.Remove(r.Network, r.Owner, name)
}
