// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft/iptnft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/traces"
	"github.com/patchbay-net/patchbay/ipam"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// AllowReference returns nil instead of CHECK's error err if a reference plugin made the
// attachment before our programs replaced the reference's. AllowReference recognises such an
// attachment: the plugin has no record of it, and the reference's objects exist. These objects
// serve until the attachment's DEL.
func (k *Kernel) AllowReference(r *plugin.Request, theirs iptnft.Made, err error) error {
	if err == nil {
		return nil
	}
	if rec, rerr := k.Records.Read(r.Network, r.Owner, r.Plugin.Name); rec != nil || rerr != nil {
		return err
	}
	if exist, perr := theirs.Exist(k.NFT, r.Session.Paths.Proc); perr != nil || !exist {
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

// Attachment returns the names of a request's attachment as the reference plugins use them.
func Attachment(r *plugin.Request) iptnft.Names {
	return iptnft.Names{Network: r.Network, ContainerID: r.ContainerID, IfName: r.IfName}
}

// SweepAbandoned removes what the reference plugins made for attachments that only address files
// still name: firewall rules, the ifb of bandwidth, and files such as tuning's backup. These objects have
// no owner key and are found by the container's names. So SweepAbandoned must run before the GC
// of the addresses deletes the address files. SweepAbandoned runs in the first plugin, because
// runtimes send a GC in the order of the list. SweepAbandoned skips attachments that have a
// record, because those are ours.
func (k *Kernel) SweepAbandoned(ctx context.Context, r *plugin.Request) error {
	list := k.abandoned(ctx, r)
	if len(list) == 0 {
		return nil
	}
	rules, err := iptnft.Present(k.NFT)
	errs := []error{err}
	for o, addrs := range list {
		if rules {
			err = k.NFT.Commit(ctx) // the queue may contain removals of the same rules
			k.NFT.Queue(iptnft.Leftovers(iptnft.Names{Network: r.Network, ContainerID: o.ID, IfName: o.IfName}, addrs))
			err = errors.Join(err, k.NFT.Commit(ctx))
			errs = append(errs, err)
		}
		if err != nil {
			r.Spare(spec.AttachmentKey{ContainerID: o.ID, IfName: o.IfName}) // only its address names it
		}
		for _, path := range k.Traces().Files(spec.AttachmentKey{ContainerID: o.ID, IfName: o.IfName}) {
			errs = append(errs, durable.Remove(path))
		}
		errs = append(errs, k.deleteReferenceIFB(r, o.ID))
	}
	return errors.Join(errs...)
}

// abandoned returns attachments, with their addresses, that are named only by host-local's
// files. Neither the valid attachments of a GC nor a record of the plugin names them. abandoned
// reads the files in their default directory.
func (k *Kernel) abandoned(ctx context.Context, r *plugin.Request) map[ipam.Holder][]netip.Addr {
	keep, ok := r.Valid()
	if !ok {
		return nil
	}
	held, err := reserved(ctx, r)
	if err != nil {
		Warn(r, err)
	}
	list := map[ipam.Holder][]netip.Addr{}
	for _, h := range held {
		o := h.Holder
		kept := slices.Contains(r.Spared(), spec.AttachmentKey{ContainerID: o.ID, IfName: o.IfName})
		if o.Validate() == nil && !kept && !keep(o.ID, o.IfName) && !k.recorded(r, o) && k.unlisted(r, h) {
			list[o] = append(list[o], h.Addr)
		}
	}
	return list
}

// unlisted reports whether an attachment is dead whose address is reserved, if a GC's list does not have it.
func (k *Kernel) unlisted(r *plugin.Request, h ipam.Reservation) bool {
	s := Suspect{
		Owner: owner.Of(r.Network, h.Holder.ID, h.Holder.IfName), Names: spec.AttachmentKey{ContainerID: h.Holder.ID, IfName: h.Holder.IfName},
		Addrs: []netip.Addr{h.Addr}, Since: h.Since,
	}
	return k.Dead(r, s, k.Records.Current(r.Network, s.Owner))
}

// recorded reports whether an attachment is ours or may be ours.
func (k *Kernel) recorded(r *plugin.Request, o ipam.Holder) bool {
	rec, err := k.Records.Read(r.Network, owner.Of(r.Network, o.ID, o.IfName), r.Plugin.Name)
	return rec != nil || err != nil
}

func reserved(ctx context.Context, r *plugin.Request) ([]ipam.Reservation, error) {
	return traces.Reserved(ctx, traces.Pool(r.Session.Paths, r.Network, ""), ipam.Holder{})
}

// deleteReferenceIFB deletes the ifb of the reference's bandwidth. The ifb's name does not depend
// on the interface. So deleteReferenceIFB keeps the ifb if another attachment of the container
// may use it.
func (k *Kernel) deleteReferenceIFB(r *plugin.Request, containerID string) error {
	valid, _ := r.Head.Valid()
	for _, v := range valid {
		if v.ContainerID == containerID {
			return nil
		}
	}
	host, err := k.Host()
	if err != nil {
		return err
	}
	link, err := host.Link(ReferenceIFB(r.Network, containerID))
	if nl.IsNotFound(err) {
		return nil
	}
	if err != nil || link.Type() != "ifb" || link.Attrs().Alias != "" {
		return err
	}
	if err := host.LinkDel(link); !nl.IsNotFound(err) {
		return err
	}
	return nil
}

// ReferenceIFB returns the name of the reference's ifb: "bwp" and hex digits of sha512(network +
// container id), 15 bytes together.
func ReferenceIFB(network, containerID string) string {
	sum := sha512.Sum512([]byte(network + containerID))
	return "bwp" + hex.EncodeToString(sum[:])[:12]
}
