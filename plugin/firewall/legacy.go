// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"net/netip"

	"github.com/patchbay-net/patchbay/internal/nft/iptnft"
	"github.com/patchbay-net/patchbay/plugin"
)

// legacyDrops is the error that names what we cannot change.
func legacyDrops(r *plugin.Request, concerned []netip.Prefix) error {
	return iptnft.LegacyDrops(r.Session.Paths.Proc, concerned)
}
