// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/ipam"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/owner"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/kernel"
	"github.com/patchbay-net/patchbay/spec"
)

// gc releases the reservations of attachments that are gone, in every directory that the
// configuration or a record names, and deletes their records.
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
		return err // the records name what is left
	}
	return kernel.CollectRecords(ctx, r)
}

// keeper reports whether an owner is still valid. One without an interface name,
// from a file of an old version, is valid with its container.
func keeper(valid []spec.Attachment) func(ipam.Holder) bool {
	set := map[ipam.Holder]bool{}
	for _, a := range valid {
		set[ipam.Holder{ID: a.ContainerID, IfName: a.IfName}] = true
		set[ipam.Holder{ID: a.ContainerID}] = true
	}
	return func(o ipam.Holder) bool { return set[o] }
}

// collect looks first, and then for each owner again, with the attachment's claim: it locks
// the directory only for as long as one owner takes.
func collect(ctx context.Context, r *plugin.Request, dir string, keep func(ipam.Holder) bool) error {
	owners, err := stale(ctx, r, dir, keep)
	errs := []error{err}
	for o := range owners {
		errs = append(errs, kernel.Of(r).Seize(r, owner.Of(r.Network, o.ID, o.IfName), func() error {
			return releaseOf(ctx, r, dir, o, func(res ipam.Reservation) bool { return !res.Since.After(r.Listed()) })
		}))
	}
	return errors.Join(errs...)
}

// stale sweeps a directory and lists the owners that are not valid.
func stale(ctx context.Context, r *plugin.Request, dir string, keep func(ipam.Holder) bool) (map[ipam.Holder]bool, error) {
	tx, err := store(r, dir).Begin(ctx, ipam.Existing)
	if err != nil {
		return nil, err
	}
	defer tx.Close()
	return ipam.Stale(tx, keep)
}

// gone returns the function that proves a reservation's attachment dead. The path of its
// namespace is in our record, with a mark that distinguishes another namespace under the
// same path, or in libcni's cache for an attachment of the reference. When the path is
// unknown, a reservation from before the node booted is gone, because no namespace survives
// a boot. The time of a file is a weak proof of that, so in addition no namespace may have
// the address.
//
// prior is our record before this call wrote its own. For this request's own names the
// runtime says that the container is a new one: that a process still holds the namespace of
// the earlier one is no reason to refuse it.
func gone(r *plugin.Request, prior *record.Record) func(ipam.Reservation) bool {
	inUse := sync.OnceValues(func() (map[netip.Addr]string, error) { return life.Addresses(r.Session.Paths.Proc) })
	held := sync.OnceValue(func() life.Held { return life.HeldBy(r.Session.Paths.Proc) })
	return func(res ipam.Reservation) bool {
		if res.EarlierBoot {
			where, err := inUse()
			res.EarlierBoot = err == nil && where[res.Addr] == ""
		}
		path, mark := recordedNetNS(r, prior, res.Owner)
		if path == "" {
			path = cachedNetNS(r, res.Owner)
		}
		if path == "" {
			return res.EarlierBoot
		}
		state, _ := life.At(path, mark, r.Session.Paths.Proc)
		if again := owner.Of(r.Network, res.Owner.ID, res.Owner.IfName) == r.Owner; state == life.Dead && !again {
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

// abandoned checks what a path alone does not show: after a boot, or when the path was
// bound again, another namespace may be there. It is another one if it does not have the
// address.
func abandoned(r *plugin.Request, path string, res ipam.Reservation) bool {
	sandbox, err := kernel.Of(r).Sandbox(path)
	if err != nil {
		return res.EarlierBoot && netns.Gone(err)
	}
	list, err := sandbox.AddrList(nil, netlink.FAMILY_ALL)
	return err == nil && !slices.ContainsFunc(list, func(a netlink.Addr) bool { return nl.AddrOf(a.IP) == res.Addr })
}

// recordedNetNS reads our record; that of this request's owner is prior, since the current
// one is this call's.
func recordedNetNS(r *plugin.Request, prior *record.Record, o ipam.Holder) (path string, mark *life.Mark) {
	key := owner.Of(r.Network, o.ID, o.IfName)
	rec := prior
	if key != r.Owner {
		rec, _ = kernel.Of(r).Records.Read(r.Network, key, name) // a broken one names none
	}
	if rec == nil {
		return "", nil
	}
	return rec.NetNS, rec.NetNSMark
}

// cachedNetNS reads libcni's cache, whose format is its own (libcni/api.go).
func cachedNetNS(r *plugin.Request, o ipam.Holder) string {
	file := filepath.Join(r.Session.Paths.CNI, "results", r.Network+"-"+o.ID+"-"+o.IfName)
	data, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	var cached struct {
		Kind        string `json:"kind"`
		ContainerID string `json:"containerId"`
		NetNS       string `json:"netns"`
	}
	if json.Unmarshal(data, &cached) != nil || cached.ContainerID != o.ID {
		return ""
	}
	return cached.NetNS
}
