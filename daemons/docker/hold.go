// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"path/filepath"

	"github.com/patchbay-net/patchbay/daemons/docker/state"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/netns"
)

// holdName is the interface's name in the holding namespace.
const holdName = "eth0"

// holdPath returns the path at which an endpoint's holding namespace is mounted. It is in our
// directory, where no tool looks for containers.
func (d *Driver) holdPath(endpointID string) string {
	return filepath.Join(d.opts.Paths.Holds(), short(endpointID, 32))
}

// makeHold makes a new holding namespace.
func (d *Driver) makeHold(path string) error {
	if err := netns.Delete(path); err != nil {
		return err
	}
	return netns.Create(path)
}

// holdOf opens the holding namespace of an endpoint to which its interface comes back. After a reboot
// the interface is gone, and holdOf returns nil. If only our run directory was emptied, the interface
// still exists, so holdOf makes the namespace again: without it an interface such as a macvlan would
// stay on the host.
func (d *Driver) holdOf(e *state.Endpoint) (*nl.Conn, error) {
	c, err := d.inside(e.Hold)
	if !netns.Gone(err) {
		return c, err
	}
	if e.Boot != d.boot {
		return nil, nil
	}
	if err := d.makeHold(e.Hold); err != nil {
		return nil, err
	}
	return d.inside(e.Hold)
}
