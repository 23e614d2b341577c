// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"cmp"

	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/endpoint"
	"github.com/patchbay-net/patchbay/spec"
)

// Conf is the configuration.
type Conf struct {
	// VRFName is the VRF in the container that the interface joins; required. It is made if
	// it is missing, and removed with its last interface.
	// Reference: also removes one that existed before.
	VRFName string `json:"vrfname"`

	// Table is the VRF's routing table. Without, it is the table of an existing VRF, or the
	// first from 1 on that no VRF, rule or route has.
	// Reference: looks only at other VRFs, so it may take a table of another program, or
	// main.
	Table uint32 `json:"table"`
}

// Load validates the configuration.
func (c *Conf) Load(r *plugin.Request) error {
	if c.VRFName == "" {
		return spec.Invalid("configuration is expected to have a valid vrf name")
	}
	if err := cmp.Or(spec.ValidateIfName(c.VRFName), endpoint.ValidateNewName(c.VRFName)); err != nil {
		return spec.Invalid("configuration is expected to have a valid vrf name: %q: %w", c.VRFName, err)
	}
	if c.VRFName == r.IfName {
		return spec.Invalid("vrf %q cannot have the name of the interface", c.VRFName)
	}
	return nil
}
