// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nft/iptnft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Detach is the DEL of a plugin that makes a veth pair. Each step runs even if
// another failed: firewall first, so that nothing points at an address that
// IPAM may give to somebody else, then the link, the address, the record (see
// takeAndRelease). lost are elements the attachment would have, for when its record is lost.
func Detach(ctx context.Context, r *plugin.Request, pluginName string, lost ...nft.Element) error {
	k := kernel.Of(r)
	env, err := k.Env(r)
	if err != nil {
		kernel.Warn(r, err) // the host's side is what counts
		env, err = hostOnly(k)
	}
	if err != nil {
		return errors.Join(err, releaseAddress(ctx, r))
	}
	rec, err := k.Records.Take(r.Network, r.Owner, pluginName)
	if err != nil {
		kernel.Warn(r, err) // broken: names must do
	}
	if rec == nil {
		rec = withoutRecord(k, r, env, pluginName)
		rec.Elements = lost
	}
	return finish(k, rec, takeAndRelease(ctx, r, func() error { return takeDown(ctx, k, env, rec) }))
}

// takeAndRelease takes away what the plugin made and gives the address back, each
// whether or not the other fails. The address goes last, since somebody else may
// have it from then on; but an IPAM plugin that works through the interface is
// called while there is one: dhcp tells the server from there.
func takeAndRelease(ctx context.Context, r *plugin.Request, take func() error) error {
	if IPAMNeedsLink(r.Head.IPAM.Type) {
		err := releaseAddress(ctx, r)
		return errors.Join(err, take())
	}
	err := take()
	return errors.Join(err, releaseAddress(ctx, r))
}

// releaseAddress asks the IPAM plugin of the configuration. One that a changed
// configuration names no more has a record.
func releaseAddress(ctx context.Context, r *plugin.Request) error {
	if r.Head.IPAM.Type != "" {
		return r.IPAMDel(ctx)
	}
	var errs []error
	for _, p := range r.Session.Plugins {
		if p.Kind != plugin.IPAM {
			continue
		}
		if rec, err := kernel.Of(r).Records.Read(r.Network, r.Owner, p.Name); rec != nil || err != nil {
			_, err = r.Delegate(ctx, p.Name, spec.Del)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func hostOnly(k *kernel.Kernel) (*netstate.Env, error) {
	host, err := k.Host()
	return &netstate.Env{Host: host, NFT: k.NFT}, err
}

// withoutRecord is what the owner alone tells: names of links and the facts it
// has a reference to. Attachments that the reference plugin made have no record
// either, so what it left in the firewall is looked for.
func withoutRecord(k *kernel.Kernel, r *plugin.Request, env *netstate.Env, pluginName string) *record.Record {
	rec := &record.Record{
		Plugin: pluginName, Owner: r.Owner, Network: r.Network, ContainerID: r.ContainerID, IfName: r.IfName,
	}
	for n := range byte(candidates) {
		rec.Links = append(rec.Links, r.Owner.LinkName(linkPrefix, n))
	}
	var err error
	if rec.Shared, err = k.Records.Held(r.Owner); err != nil {
		kernel.Warn(r, err)
	}
	k.NFT.Queue(iptnft.Leftovers(iptnft.Attachment{
		Network: r.Network, ContainerID: r.ContainerID, IfName: r.IfName,
	}, addresses(r, env)))
	return rec
}

// addresses are those of the previous result, else of the interface.
func addresses(r *plugin.Request, env *netstate.Env) (addrs []netip.Addr) {
	if prev := r.Prev(); prev != nil {
		for _, ip := range prev.IPs {
			addrs = append(addrs, ip.Address.Addr())
		}
		return addrs
	}
	if env.Sandbox == nil {
		return nil
	}
	link, err := env.Sandbox.Link(r.IfName)
	if err != nil {
		return nil
	}
	list, err := env.Sandbox.Addrs(link.Attrs().Index)
	if err != nil {
		return nil
	}
	for _, a := range list {
		if !a.Prefix.Addr().IsLinkLocalUnicast() {
			addrs = append(addrs, a.Prefix.Addr())
		}
	}
	return addrs
}

// Collect is the GC of a plugin that makes a veth pair: what DEL does, for
// every record of the network that is not on the list of the living.
func Collect(ctx context.Context, r *plugin.Request, pluginName string) error {
	k := kernel.Of(r)
	stale, ok := k.Stale(r, pluginName)
	if !ok {
		return r.IPAMForward(ctx)
	}
	env, err := hostOnly(k)
	if err != nil {
		return errors.Join(err, r.IPAMForward(ctx))
	}
	var errs []error
	for _, rec := range stale {
		errs = append(errs, finish(k, rec, takeDown(ctx, k, env, rec)))
	}
	k.NFT.Queue(iptnft.Sweep(r.Network, living(r)))
	return errors.Join(append(errs, k.SweepAbandoned(ctx, r, pluginName), r.IPAMForward(ctx))...)
}

func living(r *plugin.Request) (list []iptnft.Attachment) {
	valid, _ := r.Head.Valid()
	for _, a := range valid {
		list = append(list, iptnft.Attachment{ContainerID: a.ContainerID, IfName: a.IfName})
	}
	return list
}

// takeDown removes what is in the kernel. The firewall's removals may take
// effect while the link is deleted, but have when this returns.
func takeDown(ctx context.Context, k *kernel.Kernel, env *netstate.Env, rec *record.Record) error {
	var errs []error
	for _, name := range rec.Shared {
		errs = append(errs, netstate.ReleaseFact(ctx, k.Records, name, rec.Owner, k.NFT))
	}
	k.NFT.Remove(rec.Elements...)
	err := k.NFT.Start(ctx)
	if err != nil && len(rec.Elements)+len(rec.Shared) == 0 {
		err = nil // no rights for nftables, and nothing of ours in it
	}
	return errors.Join(append(errs, err, deletePair(env, rec), k.NFT.Commit(ctx))...)
}

// finish forgets the record unless something is left to be tried again.
func finish(k *kernel.Kernel, rec *record.Record, err error) error {
	if err != nil {
		return err
	}
	return k.Records.Remove(rec.Network, rec.Owner, rec.Plugin)
}

// deletePair deletes the pair by its host end, else by the container's: that
// is how the reference's are found, whose names are random.
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

// belongs says whether a link under a name of the owner is the owner's. One
// without mark is: an ADD ended between making and marking it.
func belongs(link netlink.Link, o owner.Key) bool {
	theirs, marked := owner.FromAlias(link.Attrs().Alias)
	return link.Type() == "veth" && (!marked || theirs == o)
}

// deleteInside deletes the interface in the container unless it is another
// attachment's: a runtime calls DEL as well after an ADD that was refused
// because the interface was there.
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
