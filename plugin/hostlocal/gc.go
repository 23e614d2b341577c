// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/results"
	"github.com/patchbay-net/patchbay/internal/spaces"
	"github.com/patchbay-net/patchbay/ipam"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/owner"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/kernel"
	"github.com/patchbay-net/patchbay/spec"
)

// gc releases the reservations of attachments that are not valid, in every directory that the
// configuration or a record names. Then it deletes their records.
func gc(ctx context.Context, r *plugin.Request) error {
	valid, ok := r.Head.Valid()
	if !ok {
		return nil
	}
	dir, err := configuredDir(r)
	if err != nil {
		kernel.Warn(r, err)
	}
	k := kernel.Of(r)
	dirs := []string{dir}
	records, _, err := k.Records.Scan(r.Network)
	if err != nil {
		kernel.Warn(r, err)
	}
	for _, rec := range records {
		if rec.Plugin == name && rec.DataDir != "" && !slices.Contains(dirs, rec.DataDir) {
			dirs = append(dirs, rec.DataDir)
		}
	}
	errs := []error{}
	for _, d := range dirs {
		errs = append(errs, collect(ctx, r, d, keeper(valid)))
	}
	if err := errors.Join(errs...); err != nil {
		return err // keep the records, which name the reservations that are left
	}
	return kernel.CollectRecords(ctx, r)
}

// keeper returns a function that reports whether an owner is still valid. An owner without an
// interface name, from a file of an old version, is valid if its container has a valid
// attachment.
func keeper(valid []spec.AttachmentKey) func(ipam.Holder) bool {
	set := map[ipam.Holder]bool{}
	for _, a := range valid {
		set[ipam.Holder{ID: a.ContainerID, IfName: a.IfName}] = true
		set[ipam.Holder{ID: a.ContainerID}] = true
	}
	return func(o ipam.Holder) bool { return set[o] }
}

// collect first lists the owners that are not valid. Then it claims the attachment of each owner
// and looks again. So it locks the directory only for the time of one owner.
func collect(ctx context.Context, r *plugin.Request, dir string, keep func(ipam.Holder) bool) error {
	owners, err := stale(ctx, r, dir, keep)
	errs := []error{err}
	for o := range owners {
		key, names := owner.Of(r.Network, o.ID, o.IfName), spec.AttachmentKey{ContainerID: o.ID, IfName: o.IfName}
		errs = append(errs, kernel.Of(r).Seize(r, key, names, func() (kernel.Outcome, error) {
			return releaseUnlessUsed(ctx, r, dir, o, key)
		}))
	}
	return errors.Join(errs...)
}

// releaseUnlessUsed releases the reservations of an owner that are older than the GC's list, unless something
// may still lead to the addresses.
func releaseUnlessUsed(ctx context.Context, r *plugin.Request, dir string, o ipam.Holder, key owner.Key) (kernel.Outcome, error) {
	k := kernel.Of(r)
	held, err := reserved(ctx, r, dir, o)
	if err != nil {
		return kernel.Kept, err
	}
	if why := cmp.Or(k.LeadsTo(r, key), k.Lives(r, key, held)); why != "" {
		kernel.Warn(r, fmt.Errorf("the addresses of %s/%s stay: %s", o.ID, o.IfName, why))
		return kernel.Kept, nil
	}
	return kernel.Removed, releaseOf(ctx, r, dir, o, func(res ipam.Reservation) bool { return !res.Since.After(r.Listed()) })
}

// reserved returns the addresses of an owner.
func reserved(ctx context.Context, r *plugin.Request, dir string, o ipam.Holder) (addrs []netip.Addr, err error) {
	tx, err := store(r, dir).Begin(ctx, ipam.Existing)
	if err != nil {
		return nil, err
	}
	defer tx.Close()
	held, err := tx.Held(o)
	for _, res := range held {
		addrs = append(addrs, res.Addr)
	}
	return addrs, err
}

// stale sweeps a directory and returns the owners that are not valid.
func stale(ctx context.Context, r *plugin.Request, dir string, keep func(ipam.Holder) bool) (map[ipam.Holder]bool, error) {
	tx, err := store(r, dir).Begin(ctx, ipam.Existing)
	if err != nil {
		return nil, err
	}
	defer tx.Close()
	return ipam.Stale(tx, keep)
}

// gone returns a function that reports whether a reservation's attachment is provably dead. The
// function looks at the path of the attachment's namespace. Our record has this path and a mark
// of the namespace; a later namespace at the same path has another mark. For an attachment of the
// reference, libcni's cache has the path. If the path is not known, a reservation from before the
// last boot is dead, because no namespace survives a boot. The time of a file proves this boot
// only weakly. So gone also demands that no namespace has the address.
//
// prior is our record from before this call wrote its own. For the attachment of this request,
// the runtime says that the container is new. So the reservation may be used again, even if a
// process still holds the earlier namespace.
func gone(r *plugin.Request, prior *record.Record) func(ipam.Reservation) bool {
	inUse := sync.OnceValues(func() (map[netip.Addr]string, error) { return spaces.Addresses(r.Session.Paths.Proc) })
	held := sync.OnceValue(func() life.Held { return life.HeldBy(r.Session.Paths.Proc) })
	return func(res ipam.Reservation) bool {
		if res.EarlierBoot {
			where, err := inUse()
			res.EarlierBoot = err == nil && where[res.Addr] == ""
		}
		path, mark := recordedNetNS(r, prior, res.Holder)
		if path == "" {
			path = cachedNetNS(r, res.Holder)
		}
		if path == "" {
			return res.EarlierBoot
		}
		state, _ := life.At(path, mark, r.Session.Paths.Proc)
		if again := owner.Of(r.Network, res.Holder.ID, res.Holder.IfName) == r.Owner; state == life.Dead && !again {
			state, _ = held().Doubt(mark, "")
		}
		if state == life.Dead {
			return true
		}
		if state == life.Alive && (mark != nil || !res.EarlierBoot) {
			return false
		}
		return abandoned(r, path, res)
	}
}

// abandoned checks what a path alone does not show. After a boot, or after a new bind, another
// namespace may be at the path. A namespace without the reservation's address is another one.
func abandoned(r *plugin.Request, path string, res ipam.Reservation) bool {
	sandbox, err := kernel.Of(r).Sandbox(path)
	if err != nil {
		return res.EarlierBoot && netns.Gone(err)
	}
	list, err := sandbox.AddrList(nil, netlink.FAMILY_ALL)
	return err == nil && !slices.ContainsFunc(list, func(a netlink.Addr) bool { return nl.AddrOf(a.IP) == res.Addr })
}

// recordedNetNS returns path and mark of the namespace from our record. For the attachment of
// this ADD, it uses prior, because the ADD has already replaced that record by its own.
func recordedNetNS(r *plugin.Request, prior *record.Record, o ipam.Holder) (path string, mark *life.Mark) {
	key := owner.Of(r.Network, o.ID, o.IfName)
	rec := prior
	if key != r.Owner {
		rec, _ = kernel.Of(r).Records.Read(r.Network, key, name) // an unreadable record names no namespace
	}
	if rec == nil {
		return "", nil
	}
	return rec.NetNS, rec.NetNSMark
}

// cachedNetNS returns the path of the namespace from libcni's cache.
func cachedNetNS(r *plugin.Request, o ipam.Holder) string {
	data, err := durable.ReadConf(results.Path(r.Session.Paths.CNI, r.Network, o.ID, o.IfName))
	if err != nil {
		return ""
	}
	if f, ok, _ := results.Decode(data); ok && f.IsOf(r.Network, o.ID, o.IfName) {
		return f.Place()
	}
	return ""
}
