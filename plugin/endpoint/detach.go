// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nft/iptnft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/kernel"
	"github.com/patchbay-net/patchbay/spec"
)

// Detach is the DEL of a plugin that makes a veth pair. Each step runs even if another
// failed: the firewall first, so that no rule names an address that IPAM may give to
// another attachment, then the link, the address, the record (see takeAndRelease). lost are
// the elements that the attachment would have, for when its record is lost.
func Detach(ctx context.Context, r *plugin.Request, pluginName string, lost ...nft.Element) error {
	k := kernel.Of(r)
	env, err := k.Env(r)
	if err != nil {
		kernel.Warn(r, err) // the host's side is enough
		env, err = hostOnly(k)
	}
	if err != nil {
		return errors.Join(err, releaseAddress(ctx, r))
	}
	rec, err := k.Records.Take(r.Network, r.Owner, pluginName)
	if err != nil {
		kernel.Warn(r, err) // broken: go on by names
	}
	if rec == nil {
		rec = withoutRecord(k, r, env, pluginName)
		rec.Elements = append(rec.Elements, lost...)
	}
	return finish(k, rec, takeAndRelease(ctx, r, func() error { return takeDown(ctx, k, env, rec) }))
}

// takeAndRelease removes what the plugin made and releases the address, each whether or not
// the other fails. The address goes last, since another attachment may get it from then on.
// But an IPAM plugin that works through the interface is called while the interface exists:
// dhcp reaches the server through it.
func takeAndRelease(ctx context.Context, r *plugin.Request, take func() error) error {
	if IPAMNeedsLink(r.Head.IPAM.Type) {
		err := releaseAddress(ctx, r)
		return errors.Join(err, take())
	}
	err := take()
	return errors.Join(err, releaseAddress(ctx, r))
}

// releaseAddress calls the IPAM plugin of the configuration, and the record's when the
// configuration has changed since.
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

// withoutRecord is what the owner alone determines: the names of links and the facts that
// it references, and, when its addresses are unknown, its elements. Attachments of the
// reference plugin have no record either, so DEL also looks for what it left in the
// firewall.
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
	var addrs []netip.Addr
	for _, a := range addresses(r, env) {
		addrs = append(addrs, a.Addr())
		k.Withdraw(&record.Record{Owner: r.Owner, Elements: lostMasquerade(r, a)})
	}
	if len(addrs) == 0 {
		if rec.Elements, err = k.OfOwner(r.Owner, nft.Element.OfInterface); err != nil {
			kernel.Warn(r, err)
		}
	}
	k.NFT.Queue(iptnft.Leftovers(kernel.Attachment(r), addrs))
	return rec
}

// addresses returns those of the previous result, else those of the interface.
func addresses(r *plugin.Request, env *netstate.Env) (addrs []netip.Prefix) {
	if prev := r.Prev(); prev != nil {
		for _, ip := range prev.IPs {
			addrs = append(addrs, ip.Address)
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
			addrs = append(addrs, a.Prefix)
		}
	}
	return addrs
}

// Collect is the GC of a plugin that makes a veth pair: the work of DEL for every record of
// the network that is not on the list of valid attachments.
func Collect(ctx context.Context, r *plugin.Request, pluginName string) error {
	k := kernel.Of(r)
	env, err := hostOnly(k)
	if err != nil {
		return errors.Join(err, r.IPAMForward(ctx))
	}
	ok, err := k.Sweep(ctx, r, pluginName, func(rec *record.Record) error {
		return finish(k, rec, takeDown(ctx, k, env, rec))
	})
	if !ok {
		return errors.Join(err, r.IPAMForward(ctx))
	}
	lost := k.SweepLost(r, pluginName, nft.Element.OfInterface, func(lost *record.Record) error {
		k.Withdraw(lost)
		return k.NFT.Commit(ctx)
	})
	k.NFT.Queue(iptnft.Sweep(r.Network, living(k, r)))
	return errors.Join(err, lost, k.SweepAbandoned(ctx, r, pluginName), r.IPAMForward(ctx))
}

func living(k *kernel.Kernel, r *plugin.Request) (list []iptnft.Attachment) {
	for _, a := range k.Stays(r) {
		list = append(list, iptnft.Attachment{ContainerID: a.ContainerID, IfName: a.IfName})
	}
	return list
}

// takeDown removes everything from the kernel. The firewall's removals may take effect
// while the link is being deleted, but have taken effect when it returns. The elements that
// keep a network internal go after the link.
func takeDown(ctx context.Context, k *kernel.Kernel, env *netstate.Env, rec *record.Record) error {
	var errs []error
	k.Withdraw(rec)
	err := k.NFT.Start(ctx)
	if err != nil && len(rec.Elements)+len(rec.Shared) == 0 {
		err = nil // no rights for nftables, and nothing of ours in it
	}
	errs = append(errs, err)
	if err = deletePair(env, rec); err == nil {
		for _, name := range rec.Shared {
			errs = append(errs, netstate.ReleaseFact(ctx, k.Records, name, rec.Owner, k.NFT))
		}
	}
	return errors.Join(append(errs, err, k.NFT.Commit(ctx))...)
}

// finish deletes the record unless something is left for another try.
func finish(k *kernel.Kernel, rec *record.Record, err error) error {
	if err != nil {
		return err
	}
	return k.Records.Remove(rec.Network, rec.Owner, rec.Plugin)
}

// deletePair deletes the pair by its host end, else by the container's: the names of the
// reference's host ends are random.
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

// belongs reports whether a link under a name of the owner is the owner's. A link without a
// mark is: an ADD ended between making and marking it.
func belongs(link netlink.Link, o owner.Key) bool {
	theirs, marked := owner.FromAlias(link.Attrs().Alias)
	return link.Type() == "veth" && (!marked || theirs == o)
}

// deleteInside deletes the interface in the container unless it is another attachment's: a
// runtime also calls DEL after an ADD that was refused because the interface existed.
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
