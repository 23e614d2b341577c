// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

// Conditions limit a network's published ports (portmap conditionsV4, conditionsV6).
type Conditions struct{ id string }

func (c *Conditions) setName(base string) string {
	if c == nil {
		return base
	}
	return base + "_" + c.id
}
