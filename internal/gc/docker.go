// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"os"
	"path/filepath"

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
