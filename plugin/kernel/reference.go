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

// Excuse drops CHECK's error err for an attachment that the reference plugins made before
// our binaries replaced theirs: the plugin has no record of it, and the reference's
// objects exist. They serve until the attachment's DEL.
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

// Unrecorded adds to CHECK's error that no record lists the attachment's objects.
func Unrecorded(err error) error {
	found := netstate.Found(err)
	if !found.Any() {
		return err
	}
	found.Unrecorded = true
	return spec.Errorf(spec.ErrorCode(err), "%w", found).WithDetails("%s", strings.Join(found.Details(), "; "))
}

// Attachment holds the names of a request's attachment, as the reference plugins use them.
func Attachment(r *plugin.Request) iptnft.Attachment {
	return iptnft.Attachment{Network: r.Network, ContainerID: r.ContainerID, IfName: r.IfName}
}
