// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/plugin"
)

// Excuse returns nil instead of err, what CHECK found missing of ours, for an
// attachment that the reference plugins made before our binaries were swapped
// in: the plugin has no record of it, and theirs (iptnft.Leftovers) finds their
// rules. Those serve until the attachment's DEL.
func (k *Kernel) Excuse(r *plugin.Request, plugin string, theirs nft.Extra, err error) error {
	if err == nil {
		return nil
	}
	if rec, rerr := k.Records.Read(r.Network, r.Owner, plugin); rec != nil || rerr != nil {
		return err
	}
	if found, perr := theirs.Plan(k.NFT); perr != nil || found == nil {
		return err
	}
	return nil
}
