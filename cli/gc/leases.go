// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"encoding/json"
	"path/filepath"
	"strings"

	"github.com/patchbay-net/patchbay/internal/dhcprpc"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/spec"
)

// readLeases reads the files of the DHCP keeper. A running keeper itself ends the lease of
// an interface that is gone; this finds the leases of a keeper that does not run any more.
// gc sends no release: the lease expires on the server.
func (ev *evidence) readLeases() {
	found, err := filepath.Glob(filepath.Join(ev.paths.Run, dhcprpc.LeaseDir, "*.json"))
	ev.fail(err)
	for _, path := range found {
		data, err := durable.Read(path)
		ev.fail(err)
		var lease struct {
			Network     string `json:"network"`
			ContainerID string `json:"containerID"`
			IfName      string `json:"ifname"`
			Place       struct {
				NetNS string `json:"netns"`
			} `json:"place"`
		}
		o := owner.Key(strings.TrimSuffix(filepath.Base(path), ".json"))
		if json.Unmarshal(data, &lease) != nil || o != owner.Of(lease.Network, lease.ContainerID, lease.IfName) ||
			spec.ValidateNetworkName(lease.Network) != nil {
			continue // the keeper reports it
		}
		a := ev.get(lease.Network, lease.ContainerID, lease.IfName)
		a.at(lease.Place.NetNS, nil)
		a.seen(ev.mtime(path))
		a.files = append(a.files, path)
		a.addObject("dhcp lease", filepath.Base(path), true)
	}
}
