// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"strings"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft/iptnft"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Excuse returns nil instead of err, what CHECK found missing of ours, for an
// attachment that the reference plugins made before our binaries were swapped
// in: the plugin has no record of it, and theirs stands. That serves until the
// attachment's DEL.
func (k *Kernel) Excuse(r *plugin.Request, plugin string, theirs iptnft.Made, err error) error {
	if err == nil {
		return nil
	}
	if rec, rerr := k.Records.Read(r.Network, r.Owner, plugin); rec != nil || rerr != nil {
		return err
	}
	if stands, perr := theirs.Stands(k.NFT, r.Session.Paths.Proc); perr != nil || !stands {
		return Unrecorded(err)
	}
	return nil
}

// Unrecorded says in CHECK's error that no record tells what the attachment had.
func Unrecorded(err error) error {
	found := netstate.Found(err)
	if !found.Any() {
		return err
	}
	found.Unrecorded = true
	return spec.Errorf(spec.ErrorCode(err), "%w", found).WithDetails("%s", strings.Join(found.Details(), "; "))
}

// Attachment is how the reference plugins name a request's.
func Attachment(r *plugin.Request) iptnft.Attachment {
	return iptnft.Attachment{Network: r.Network, ContainerID: r.ContainerID, IfName: r.IfName}
}
