// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"errors"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
)

// Detach is the DEL of a plugin that makes a veth pair. Each step runs even if
// another failed: firewall first, so that nothing points at an address that
// IPAM may give to somebody else, then the link, the address, the record.
func Detach(ctx context.Context, r *plugin.Request, pluginName string, derived ...nft.Element) error {
	k := kernel.Of(r)
	rec, err := k.Records.Read(r.Network, r.Owner, pluginName)
	if err != nil {
		kernel.Warn(r, err) // broken: names must do
	}
	if rec == nil {
		rec, err = withoutRecord(k, r, pluginName)
		rec.Elements = derived
		if err != nil {
			kernel.Warn(r, err)
		}
	}
	errs := []error{takeDown(ctx, k, rec, func() (*netstate.Env, error) { return k.Env(r) })}
	if r.Head.IPAM.Type != "" {
		errs = append(errs, r.IPAMDel(ctx))
	}
	return finish(k, rec, errors.Join(errs...))
}

// withoutRecord is what the owner alone tells: names of links and the facts it
// has a reference to.
func withoutRecord(k *kernel.Kernel, r *plugin.Request, pluginName string) (*record.Record, error) {
	rec := &record.Record{
		Plugin: pluginName, Owner: r.Owner, Network: r.Network, ContainerID: r.ContainerID, IfName: r.IfName,
	}
	for n := range byte(candidates) {
		rec.Links = append(rec.Links, r.Owner.LinkName(linkPrefix, n))
	}
	var err error
	rec.Shared, err = k.Records.Held(r.Owner)
	return rec, err
}

// Collect is the GC of a plugin that makes a veth pair: what DEL does, for
// every record of the network that is not on the list of the living.
func Collect(ctx context.Context, r *plugin.Request, pluginName string) error {
	keep, ok := r.Valid()
	if !ok {
		return r.IPAMForward(ctx)
	}
	k := kernel.Of(r)
	records, err := k.Records.List(r.Network)
	errs := []error{err}
	hostOnly := func() (*netstate.Env, error) {
		host, err := k.Host()
		return &netstate.Env{Host: host, NFT: k.NFT}, err
	}
	for _, rec := range records {
		if rec.Plugin == pluginName && !keep(rec.ContainerID, rec.IfName) {
			errs = append(errs, finish(k, rec, takeDown(ctx, k, rec, hostOnly)))
		}
	}
	return errors.Join(append(errs, r.IPAMForward(ctx))...)
}

// takeDown removes what is in the kernel.
func takeDown(ctx context.Context, k *kernel.Kernel, rec *record.Record, open func() (*netstate.Env, error)) error {
	k.NFT.Remove(rec.Elements...)
	var errs []error
	for _, name := range rec.Shared {
		errs = append(errs, netstate.ReleaseFact(ctx, k.Records, name, rec.Owner, k.NFT))
	}
	errs = append(errs, k.NFT.Commit(ctx))
	env, err := open()
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	return errors.Join(append(errs, deletePair(env, rec))...)
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
