// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package attached keeps the plans of pods' further networks in /var/lib/patchbay/attached, one file for each ADD, under the owner
// of its attachment. The plugin `networks` writes a plan before its first change; DEL, CHECK and GC use nothing else, and
// the agent makes the pod's status of it. A plan survives a reboot, because addresses do. It is not synced to the disk
// (ADR 5): after a power loss the pod is gone, and a plan that was cut short counts as lost.
package attached

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/lightjson"
	"github.com/patchbay-net/patchbay/internal/npwg"
	"github.com/patchbay-net/patchbay/internal/order"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/sealed"
)

// These are the first words of the files (internal/sealed).
const (
	kind   = "attached-networks"
	schema = 1
)

// maxSize is the size in bytes of the largest plan. It has a configuration of at most 1.5 MiB for each network.
const maxSize = 32 << 20

// directory is below the state directory.
const directory = "attached"

func path(p paths.Paths, o owner.Key) string { return filepath.Join(Dir(p), string(o)) }

// Write stores a plan, in the place of an earlier one of the same attachment.
func Write(p paths.Paths, plan *npwg.Plan) error {
	body, err := lightjson.Marshal(plan)
	if err == nil {
		err = durable.MakeDir(p.State, directory)
	}
	if err == nil {
		err = durable.Write(path(p, Owner(plan)), sealed.Seal(kind, schema, body))
	}
	if err != nil {
		return fmt.Errorf("write the plan of networks: %w", err)
	}
	return nil
}

// Owner returns the owner of the attachment in whose ADD a plan was made.
func Owner(plan *npwg.Plan) owner.Key { return owner.Of(plan.Network, plan.ContainerID, plan.IfName) }

// Read returns the plan of an attachment, or nil if there is none. An error wraps sealed.ErrDamaged if the file is cut short.
func Read(p paths.Paths, o owner.Key) (*npwg.Plan, error) {
	if err := durable.CheckDir(p.State, directory); err != nil {
		return nil, fmt.Errorf("read the plan of networks: %w", err)
	}
	data, err := durable.ReadUpTo(path(p, o), maxSize)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var body []byte
	if err == nil {
		body, err = sealed.Open(kind, schema, data)
	}
	plan := new(npwg.Plan)
	if err == nil {
		err = lightjson.Unmarshal(body, plan)
	}
	if err == nil && Owner(plan) != o {
		err = fmt.Errorf("%w: it is the plan of %s/%s of network %s", sealed.ErrDamaged, plan.ContainerID, plan.IfName, plan.Network)
	}
	if err != nil {
		return nil, fmt.Errorf("read the plan of networks %s: %w", path(p, o), err)
	}
	return plan, nil
}

// Dir returns the directory with the plans. It changes with each plan that is written or removed.
func Dir(p paths.Paths) string { return filepath.Join(p.State, directory) }

// MakeDir makes the directory with the plans, for those that watch it.
func MakeDir(p paths.Paths) error { return durable.MakeDir(p.State, directory) }

// InOrder sorts plans by the time at which they were last written.
func InOrder(p paths.Paths, plans []*npwg.Plan) {
	at := make(map[*npwg.Plan]time.Time, len(plans))
	for _, plan := range plans {
		at[plan] = Since(p, Owner(plan))
	}
	order.By(plans, func(a, b *npwg.Plan) int { return at[a].Compare(at[b]) })
}

// Ready returns an error if no plan can be written.
func Ready(p paths.Paths) error {
	if err := durable.CheckDir(p.State, directory); err != nil {
		return err
	}
	return durable.WritableDir(Dir(p))
}

// Since returns when a plan was last written.
func Since(p paths.Paths, o owner.Key) time.Time {
	info, err := os.Lstat(path(p, o))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// Remove deletes the plan of an attachment. It accepts that there is none.
func Remove(p paths.Paths, o owner.Key) error {
	if err := durable.CheckDir(p.State, directory); err != nil {
		return fmt.Errorf("remove the plan of networks: %w", err)
	}
	return durable.Remove(path(p, o))
}

// List returns all plans of the node. errs are about those that cannot be read.
func List(p paths.Paths) (plans []*npwg.Plan, errs []error) {
	entries, err := os.ReadDir(Dir(p))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, []error{fmt.Errorf("list the plans of networks: %w", err)}
	}
	for _, e := range entries {
		if durable.IsTemp(e.Name()) {
			continue
		}
		switch plan, err := Read(p, owner.Key(e.Name())); {
		case err != nil:
			errs = append(errs, err)
		case plan != nil:
			plans = append(plans, plan)
		}
	}
	return plans, errs
}
