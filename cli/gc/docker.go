// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/paths"
)

// driverDirs are the directories of `patchbayd docker` that hold attachments: each file is
// named after the container id of the plugin calls, which is the id of Docker's endpoint,
// or of an address that waits for its endpoint.
var driverDirs = [...]string{"endpoints", "leases"}

// DriverState is the state directory of `patchbayd docker`.
func DriverState(p paths.Paths) string { return filepath.Join(p.State, "docker") }

// readDriver finds attachments that the Docker driver still has to detach. `docker ps`
// never lists their ids, and other vendors' plugins leave nothing that names their holding
// namespaces.
func (ev *evidence) readDriver() {
	ev.driver = make(map[string]bool)
	for _, dir := range driverDirs {
		entries, err := os.ReadDir(filepath.Join(DriverState(ev.paths), dir))
		ev.fail(err)
		for _, e := range entries {
			if !durable.IsTemp(e.Name()) {
				ev.driver[e.Name()] = true
			}
		}
	}
}

// driverTime bounds `patchbayd docker gc`, which calls plugins.
const driverTime = 5 * time.Minute

// askDriver runs the Docker driver's own gc, since only its state can remove its
// endpoints, networks and addresses; with Options.Apply it removes the dead ones. A node
// that never ran the driver is skipped.
func askDriver(ctx context.Context, o *Options) ([]*Stray, error) {
	if !o.Driver || !used(DriverState(o.Paths)) {
		return nil, nil
	}
	program, err := DriverProgram()
	if err != nil {
		return nil, fmt.Errorf("what patchbayd docker holds is not collected: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, driverTime)
	defer cancel()
	argv := []string{"docker", "gc", "--json", "--grace=" + o.Grace.String()}
	if !o.Apply {
		argv = append(argv, "--dry-run")
	}
	out, err := output(ctx, append([]string{program}, argv...))
	var items []struct {
		Stray
		Kind string `json:"kind"`
	}
	if derr := json.Unmarshal(out, &items); derr != nil {
		err = errors.Join(err, fmt.Errorf("answer of patchbayd docker gc: %w", derr))
	}
	list := make([]*Stray, len(items))
	for i := range items {
		list[i] = &items[i].Stray
		list[i].Kind = "docker " + items[i].Kind
		if list[i].State != Unsure { // drivers of older releases omit the state
			list[i].State = Dead
		}
	}
	return list, err
}

// used reports whether the driver's directory holds any object.
func used(dir string) bool {
	for _, kind := range []string{"networks", "endpoints", "pools", "leases"} {
		if entries, err := os.ReadDir(filepath.Join(dir, kind)); err == nil && len(entries) > 0 {
			return true
		}
	}
	return false
}
