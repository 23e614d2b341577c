// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/inventory"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/traces"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Detach performs the DEL of a plugin that makes a veth pair. The order is: firewall, link, address,
// record (see removeAndRelease).
func Detach(ctx context.Context, r *plugin.Request) error {
	k := kernel.Of(r)
	env, err := k.DelEnv(r)
	if env == nil {
		return err
	}
	if err != nil {
		kernel.Warn(r, err) // the work on the host's side is enough
	}
	made := func() *record.Record { return withoutRecord(k, r, env) }
	return k.Detach(r, made, func(rec *record.Record) error {
		return removeAndRelease(ctx, r, func() error { return removeFromKernel(ctx, k, env, rec) })
	})
}

// removeAndRelease removes what other plugins left, removes what the plugin made, and releases the
// address, in the order of a removal (inventory.Remove). dhcp, for example, reaches the server through the interface.
//
// The DELs of chained plugins, which ran before, do not wait until their firewall elements are gone
// (kernel.Finish). Without a link to delete, or if the address goes first, removeAndRelease waits for that.
func removeAndRelease(ctx context.Context, r *plugin.Request, remove func() error) error {
	var began nft.Tick
	others := inventory.Step{Part: inventory.Rules, Do: func() error {
		err := detachOthers(ctx, r, &record.Record{Network: r.Network, Owner: r.Owner, ContainerID: r.ContainerID, IfName: r.IfName}, r.NetNS)
		began = nft.Ticks()
		return err
	}}
	from := givers(r)
	address := inventory.Step{Part: inventory.Address, Do: func() error {
		nft.AwaitTick(began)
		return releaseAddress(ctx, r, from)
	}}
	if slices.ContainsFunc(from, IPAMNeedsLink) {
		address.Part = inventory.Through
	}
	return inventory.Remove(others, inventory.Step{Part: inventory.Link, Do: remove}, address)
}

// detachOthers calls the DEL of the other plugins that still have a record of the attachment: their own DEL
// failed, or they have left the network's list since the ADD. Another one may also have made the link.
func detachOthers(ctx context.Context, r *plugin.Request, of *record.Record, netNS string) error {
	k := kernel.Of(r)
	var errs []error
	for _, p := range r.Session.Plugins {
		if p.Kind == plugin.IPAM || p.Name == r.Plugin.Name || !k.HasRecord(of.Network, of.Owner, p.Name) {
			continue
		}
		id, ifName := of.ContainerID, of.IfName
		if rec, err := k.Records.Read(of.Network, of.Owner, p.Name); err == nil && rec != nil {
			id, ifName = rec.ContainerID, rec.IfName
		}
		if id == "" {
			continue // no record can be read, so the plugin's GC decides
		}
		call := kernel.RecordedDel(p.Name, of.Network, id, ifName)
		call.NetNS = netNS
		errs = append(errs, r.Session.Do(ctx, p.Name, call))
	}
	if len(errs) > 0 || k.Finishing() {
		errs = append(errs, k.NFT.Commit(ctx)) // waits until the elements are gone
	}
	return errors.Join(errs...)
}

// releaseAddress calls the DEL of IPAM plugins.
func releaseAddress(ctx context.Context, r *plugin.Request, givers []string) error {
	var errs []error
	for _, ipam := range givers {
		if ipam == r.Head.IPAM.Type {
			errs = append(errs, r.IPAM(ctx, spec.Del))
			continue
		}
		call := kernel.RecordedDel(ipam, r.Network, r.ContainerID, r.IfName)
		call.NetNS = r.NetNS
		errs = append(errs, r.Session.Do(ctx, ipam, call))
	}
	return errors.Join(errs...)
}

// givers returns the IPAM plugins that may have given an address: that of the configuration, and those that
// have a record of the attachment, because the configuration may have had another one at the ADD.
func givers(r *plugin.Request) (types []string) {
	if r.Head.IPAM.Type != "" {
		types = append(types, r.Head.IPAM.Type)
	}
	for _, p := range r.Session.Plugins {
		if p.Kind == plugin.IPAM && p.Name != r.Head.IPAM.Type && kernel.Of(r).Records.Exists(r.Network, r.Owner, p.Name) {
			types = append(types, p.Name)
		}
	}
	return types
}

// Collect performs the GC of a plugin that makes a veth pair. Collect does the work of DEL for
// every record of the network whose attachment is not valid.
func Collect(ctx context.Context, r *plugin.Request) error {
	k := kernel.Of(r)
	env, err := k.HostEnv(r)
	if err != nil {
		return err
	}
	err = k.Sweep(ctx, r, func(rec *record.Record) error {
		return errors.Join(detachOthers(ctx, r, rec, ""), removeFromKernel(ctx, k, env, rec))
	})
	if _, ok := r.Valid(); !ok {
		return err
	}
	lost := k.SweepLost(r, nft.Element.OfInterface, func(lost *record.Record) error {
		k.Withdraw(lost)
		return k.NFT.Commit(ctx)
	})
	k.SpareLost(r)
	k.SweepReference(r)
	return errors.Join(err, lost, k.SweepAbandoned(ctx, r))
}

// removeFromKernel removes everything from the kernel. The kernel removes the firewall's elements while
// removeFromKernel deletes the link. None exists when removeFromKernel returns. The elements that keep a network
// internal are removed after the link.
func removeFromKernel(ctx context.Context, k *kernel.Kernel, env *netstate.Env, rec *record.Record) error {
	var errs []error
	k.Withdraw(rec)
	err := k.NFT.Start(ctx)
	if err != nil && len(rec.Elements)+len(rec.Shared) == 0 && k.NFT.Absent() {
		err = nil // the kernel has nothing of ours
	}
	errs = append(errs, err)
	if err = deletePair(env, rec); err == nil {
		for _, name := range rec.Shared {
			errs = append(errs, k.ReleaseFact(ctx, name, rec.Owner))
		}
	}
	return errors.Join(append(errs, err, k.NFT.Commit(ctx))...)
}

// deletePair deletes the veth pair by its host's end. If it does not find that end, it deletes
// the pair by the container's end: the reference gives host's ends random names.
func deletePair(env *netstate.Env, rec *record.Record) error {
	for _, name := range rec.Links {
		link, err := env.Host.Link(name)
		if nl.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		if belongs(link, rec.Owner) {
			return netstate.DeleteLink(env.Host, link)
		}
	}
	if env.Sandbox == nil {
		return nil
	}
	return deleteInside(env, rec)
}

// belongs reports whether a link with a name of the owner belongs to the owner.
func belongs(link netlink.Link, o owner.Key) bool {
	return link.Type() == "veth" && traces.IsOf(link, o)
}

// deleteInside deletes the interface in the container, unless it belongs to another attachment.
// It can belong to another one, because a runtime calls DEL even after an ADD that failed because
// the interface existed.
func deleteInside(env *netstate.Env, rec *record.Record) error {
	link, err := env.Sandbox.Link(rec.IfName)
	if nl.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if link.Type() != "veth" {
		return nil
	}
	peer, err := env.Host.LinkAt(link.Attrs().ParentIndex)
	if err != nil && !nl.IsNotFound(err) {
		return err
	}
	if err == nil && !belongs(peer, rec.Owner) {
		return nil
	}
	return netstate.DeleteLink(env.Sandbox, link)
}

// Remover removes what a plugin put into a container's namespace. If there is no record, rec is nil.
type Remover func(ctx context.Context, at Place, rec *record.Record) error

// Place is the namespace from which a container's interface is removed.
type Place struct {
	Conn *nl.Conn // nil if the namespace is gone
	// Old means that the record names the path but the runtime does not. Another namespace may have
	// the path by now, so only an interface with our mark is ours.
	Old bool
}

// DetachLink performs the DEL of a Single whose kind of interface has the plugin's name.
func DetachLink(ctx context.Context, r *plugin.Request) error {
	return DetachSingle(ctx, r, DeleteLink(r, r.Plugin.Name))
}

// CollectLinks performs the GC of a Single whose kind of interface has the plugin's name.
func CollectLinks(ctx context.Context, r *plugin.Request) error {
	return CollectSingle(ctx, r, DeleteLink(r, r.Plugin.Name))
}

// DeleteLink deletes the interface that a Single made. kind is the netlink library's name of
// the interface's kind ("tuntap"). An interface of the reference plugin has no mark, so the
// kind decides: an interface of another kind belongs to another program. If only a record names
// the namespace, DeleteLink does not touch an interface without a mark.
func DeleteLink(r *plugin.Request, kind string) Remover {
	return func(_ context.Context, at Place, rec *record.Record) error {
		if at.Conn == nil {
			return nil // the kernel deleted it with the namespace
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

// TempName returns the first name of a new interface in the container. The name is derived from the
// owner, so DEL finds the interface even without a mark.
func TempName(o owner.Key) string { return o.LinkName(linkPrefix, 0) }

// own finds the owner's interface by its name. If the container renamed the interface, own finds
// it by its mark.
func own(at Place, ifName string, o owner.Key, kind string) (netlink.Link, error) {
	link, err := at.Conn.Link(ifName)
	if err == nil && link.Type() == kind {
		if link.Attrs().Alias == o.Alias() || !at.Old && traces.IsOf(link, o) {
			return link, nil
		}
	}
	if err != nil && !nl.IsNotFound(err) {
		return nil, err
	}
	return at.Conn.FindLink(func(l netlink.Link) bool { return l.Attrs().Alias == o.Alias() && l.Type() == kind })
}

// DetachSingle performs the DEL of a Single. It calls remove and the IPAM plugin (see
// removeAndRelease). It deletes the record last. If remove fails with kernel.ErrUnfinished, the
// record stays.
func DetachSingle(ctx context.Context, r *plugin.Request, remove Remover) error {
	k := kernel.Of(r)
	return k.Detach(r, nil, func(rec *record.Record) error {
		at := Place{Conn: openPlace(k, r, r.NetNS, rec)}
		if at.Conn == nil && rec != nil && rec.NetNS != r.NetNS { // the runtime names none, or not that of the ADD
			at = Place{Conn: openPlace(k, r, rec.NetNS, rec), Old: true}
		}
		var unfinished error
		err := removeAndRelease(ctx, r, func() error {
			err := remove(ctx, at, rec)
			if errors.Is(err, kernel.ErrUnfinished) {
				unfinished, err = err, nil
			}
			return err
		})
		return cmp.Or(err, unfinished)
	})
}

// openPlace opens a namespace that may be gone. It refuses the namespace of this process. If the
// kernel uses a process id again, a path in /proc leads to another process, perhaps to one in the
// host's namespace. For the same reason it refuses a namespace that is not the one of the record.
func openPlace(k *kernel.Kernel, r *plugin.Request, path string, rec *record.Record) *nl.Conn {
	if path == "" || k.Recycled(path, rec) {
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

// CollectSingle performs the GC of a Single. CollectSingle calls remove for each record whose
// attachment is not valid.
func CollectSingle(ctx context.Context, r *plugin.Request, remove Remover) error {
	k := kernel.Of(r)
	err := k.Sweep(ctx, r, func(rec *record.Record) error {
		chained := detachOthers(ctx, r, rec, "")
		err := remove(ctx, Place{Conn: openPlace(k, r, rec.NetNS, rec), Old: true}, rec)
		if chained != nil && errors.Is(err, kernel.ErrUnfinished) {
			err = nil // the failure counts
		}
		return errors.Join(chained, err)
	})
	return errors.Join(err, k.SweepAbandoned(ctx, r))
}
