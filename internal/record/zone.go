// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

import "net/netip"

// ZoneSources are addresses in a firewalld zone.
type ZoneSources struct {
	Zone    string         `json:"zone"`
	Sources []netip.Prefix `json:"sources"`
}

// Zones returns all firewalld zones in the record.
func (r *Record) Zones() (zones []ZoneSources) {
	if len(r.Sources) > 0 {
		zones = append(zones, ZoneSources{r.Zone, r.Sources})
	}
	return append(zones, r.OtherZones...)
}
