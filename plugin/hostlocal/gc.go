// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/inventory"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/spaces"
	"github.com/patchbay-net/patchbay/internal/traces"
	"github.com/patchbay-net/patchbay/ipam"
	"github.com/patchbay-net/patchbay/plugin"
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
		s := kernel.Suspect{Owner: owner.Of(r.Network, o.ID, o.IfName), Names: spec.AttachmentKey{ContainerID: o.ID, IfName: o.IfName}}
		if s.Addrs, err = reserved(ctx, r, dir, o); err != nil {
			r.Spare(s.Names)
			errs = append(errs, err)
			continue
		}
		errs = append(errs, kernel.Of(r).Seize(r, s, func() (kernel.Outcome, error) {
			return releaseUnlessUsed(ctx, r, dir, o, s.Owner)
		}))
	}
	return errors.Join(errs...)
}

// releaseUnlessUsed releases the reservations of an owner that are older than the GC's list, unless something
// may still lead to the addresses.
func releaseUnlessUsed(ctx context.Context, r *plugin.Request, dir string, o ipam.Holder, key owner.Key) (kernel.Outcome, error) {
	if why := kernel.Of(r).LeadsTo(r, key); why != "" {
		kernel.Warn(r, fmt.Errorf("the addresses of %s/%s stay: %s", o.ID, o.IfName, why))
		return kernel.Kept, nil
	}
	return kernel.Removed, releaseOf(ctx, r, dir, o, func(res ipam.Reservation) bool { return !res.Since.After(r.Listed()) })
}

// reserved returns the addresses of an owner.
func reserved(ctx context.Context, r *plugin.Request, dir string, o ipam.Holder) (addrs []netip.Addr, err error) {
	held, err := traces.Reserved(ctx, store(r, dir), o)
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

// isDead returns a function that reports whether a reservation's attachment is dead (inventory.Judge), so that an ADD may
// take its address. Our record has the path of the attachment's namespace, and a mark: a later namespace at the path has
// another one. For an attachment of the reference, libcni's cache has the path. If the path is not known, a reservation
// from before the last boot is dead, unless a namespace has the address: the time of a file proves the boot only weakly.
//
// prior is our record from before this call wrote its own.
func isDead(r *plugin.Request, prior *record.Record) func(ipam.Reservation) bool {
	inUse, judge := spaces.NewFinder(r.Session.Paths.Proc), spaces.Judge(r.Session.Paths)
	return func(res ipam.Reservation) bool {
		e := evidence(r, prior, res)
		e.At, e.InUse = judge.At, func() (string, error) { return inUse(res.Addr) }
		if owner.Of(r.Network, res.Holder.ID, res.Holder.IfName) == r.Owner {
			e.At = func(path string, was *life.Mark) (life.State, string) { return over(r, &judge, path, was, res.Addr) }
		}
		return inventory.Judge(e, inventory.Question{OnlyAddress: true}).State == life.Dead
	}
}

// evidence returns what files say of a reservation's attachment. Of the attachment of this ADD, prior only says where the
// earlier one was.
func evidence(r *plugin.Request, prior *record.Record, res ipam.Reservation) *inventory.Evidence {
	names := spec.AttachmentKey{ContainerID: res.Holder.ID, IfName: res.Holder.IfName}
	e := &inventory.Evidence{Names: names, Outlived: res.EarlierBoot}
	switch key := owner.Of(r.Network, names.ContainerID, names.IfName); {
	case key != r.Owner:
		if rec, err := kernel.Of(r).Records.Read(r.Network, key, name); rec != nil || err != nil {
			e.Record(rec.Head(), res.Since)
		}
	case prior != nil && prior.NetNS != "":
		e.Space(prior.NetNS, prior.NetNSMark)
		return e
	}
	e.Space(traces.CachedNetNS(r.Session.Paths, r.Network, names), nil)
	return e
}

// over judges the earlier namespace of this request's attachment. The runtime says that the container is new. So the
// earlier namespace is over even if a process still holds it, or if another one without the address may be at its path.
func over(r *plugin.Request, judge *life.Judge, path string, was *life.Mark, addr netip.Addr) (life.State, string) {
	state, why := judge.AtPath(path, was)
	if state != life.Unsure {
		return state, why
	}
	sandbox, err := kernel.Of(r).Sandbox(path)
	if err != nil {
		return state, why
	}
	list, err := sandbox.AddrList(nil, netlink.FAMILY_ALL)
	if err == nil && !slices.ContainsFunc(list, func(a netlink.Addr) bool { return nl.AddrOf(a.IP) == addr }) {
		return life.Dead, path + " has no such address"
	}
	return state, why
}
