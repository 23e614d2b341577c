// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"errors"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/kernel"
)

// TakeAway removes what a plugin put into a container's namespace. rec is nil when there is
// no record.
type TakeAway func(ctx context.Context, at Place, rec *record.Record) error

// Place is the namespace of a container that is being detached.
type Place struct {
	Conn *nl.Conn // nil: the namespace is gone
	// Old means that the path is from a record, not from the runtime. Another namespace may
	// have the path by now: only a marked interface is ours.
	Old bool
}

// ErrUnfinished is wrapped by a TakeAway that has done what is possible now. It does not
// fail a DEL or GC: the record is kept, so that the next GC tries again.
var ErrUnfinished = errors.New("not finished")

// Delete is the TakeAway of an interface that the plugin made. kind is the library's name
// of it ("tuntap"): an interface of the reference plugin has no mark, and one of another
// kind belongs to another program. So does one without a mark where the namespace is known
// only from a record.
func Delete(r *plugin.Request, kind string) TakeAway {
	return func(_ context.Context, at Place, rec *record.Record) error {
		if at.Conn == nil {
			return nil // it was deleted with the namespace
		}
		o, ifName := r.Owner, r.IfName
		if rec != nil {
			o, ifName = rec.Owner, rec.IfName
		}
		if err := netstate.DeleteUnmarked(at.Conn, TempName(o), kind); err != nil {
			return err
		}
		link, err := own(at, ifName, o, kind)
		if err != nil || link == nil {
			return err
		}
		return netstate.DeleteLink(at.Conn, link)
	}
}

// TempName is the first name of a new interface in the container. It derives from the
// owner, so that DEL finds one without a mark.
func TempName(o owner.Key) string { return o.LinkName(linkPrefix, 0) }

// own finds the owner's interface by its name, or by its mark if the container renamed it.
func own(at Place, ifName string, o owner.Key, kind string) (netlink.Link, error) {
	link, err := at.Conn.Link(ifName)
	if err == nil && link.Type() == kind {
		theirs, marked := owner.FromAlias(link.Attrs().Alias)
		if theirs == o || !marked && !at.Old {
			return link, nil
		}
	}
	if err != nil && !nl.IsNotFound(err) {
		return nil, err
	}
	links, err := at.Conn.LinkList()
	for _, l := range links {
		if l.Attrs().Alias == o.Alias() && l.Type() == kind {
			return l, nil
		}
	}
	return nil, err
}

// DetachSingle is the DEL of a Single: it calls take and IPAM (see takeAndRelease), and
// deletes the record last.
func DetachSingle(ctx context.Context, r *plugin.Request, pluginName string, take TakeAway) error {
	k := kernel.Of(r)
	rec, err := k.Records.Take(r.Network, r.Owner, pluginName)
	if err != nil {
		kernel.Warn(r, err)
	}
	at := Place{Conn: openPlace(k, r, r.NetNS)}
	if r.NetNS == "" && rec != nil {
		at = Place{Conn: openPlace(k, r, rec.NetNS), Old: true}
	}
	unfinished := false
	err = takeAndRelease(ctx, r, func() error {
		err := take(ctx, at, rec)
		if unfinished = errors.Is(err, ErrUnfinished); unfinished {
			kernel.Warn(r, err)
			return nil
		}
		return err
	})
	if err != nil || unfinished {
		return err
	}
	return k.Records.Remove(r.Network, r.Owner, pluginName)
}

// openPlace opens a namespace that may be gone. The process's own is no container's: a path
// below /proc leads to another one when a process id is used again.
func openPlace(k *kernel.Kernel, r *plugin.Request, path string) *nl.Conn {
	if path == "" {
		return nil
	}
	c, err := k.Sandbox(path)
	if err == nil {
		var own bool
		if own, err = c.NS.IsCurrent(); err == nil && (!own || r.NetNSOverride) {
			return c
		}
	}
	if err != nil && !netns.Gone(err) {
		kernel.Warn(r, err)
	}
	return nil
}

// CollectSingle is the GC of a Single: it calls take for each record that is not on the
// list of valid attachments.
func CollectSingle(ctx context.Context, r *plugin.Request, pluginName string, take TakeAway) error {
	k := kernel.Of(r)
	_, err := k.Sweep(ctx, r, pluginName, func(rec *record.Record) error {
		err := take(ctx, Place{Conn: openPlace(k, r, rec.NetNS), Old: true}, rec)
		switch {
		case errors.Is(err, ErrUnfinished):
			kernel.Warn(r, err)
			return nil
		case err != nil:
			return err
		}
		return k.Records.Remove(rec.Network, rec.Owner, rec.Plugin)
	})
	return errors.Join(err, k.SweepAbandoned(ctx, r, pluginName), r.IPAMForward(ctx))
}
