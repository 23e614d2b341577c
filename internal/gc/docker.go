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

	"github.com/patchbay-net/patchbay/internal/atomicfile"
	"github.com/patchbay-net/patchbay/internal/paths"
)

// driverDirs are what `patchbayd docker` keeps about attachments: each file is
// named by the container id that plugins are called with, which is Docker's id
// of the endpoint, or one of an address that waits for its endpoint.
var driverDirs = [...]string{"endpoints", "leases"}

// DriverState is where `patchbayd docker` keeps what it knows.
func DriverState(p paths.Paths) string { return filepath.Join(p.State, "docker") }

// readDriver finds what the Docker driver still has to detach. `docker ps` never
// lists its ids, and other people's plugins leave nothing that names its holding
// namespaces.
func (ev *evidence) readDriver() {
	ev.driver = make(map[string]bool)
	for _, dir := range driverDirs {
		entries, err := os.ReadDir(filepath.Join(DriverState(ev.paths), dir))
		ev.fail(err)
		for _, e := range entries {
			if !atomicfile.IsTemp(e.Name()) {
				ev.driver[e.Name()] = true
			}
		}
	}
}

// driverTime bounds `patchbayd docker gc`, which calls plugins.
const driverTime = 5 * time.Minute

// askDriver has the Docker driver collect, since its endpoints, networks and
// addresses can only be removed with what it knows: dead ones go with apply. It
// is not there to be asked on a node where it never was.
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
		if list[i].State != Unsure { // a driver from before the last upgrade says no state
			list[i].State = Dead
		}
	}
	return list, err
}

// used says whether the driver has files of anything.
func used(dir string) bool {
	for _, kind := range []string{"networks", "endpoints", "pools", "leases"} {
		if entries, err := os.ReadDir(filepath.Join(dir, kind)); err == nil && len(entries) > 0 {
			return true
		}
	}
	return false
}
