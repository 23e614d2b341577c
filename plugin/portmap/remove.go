// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nft/iptnft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// remove takes away everything of one attachment: for DEL and GC. Every step
// runs even if another failed; the record goes when all is done.
func remove(ctx context.Context, r *plugin.Request, k *kernel.Kernel, rec *record.Record) error {
	k.NFT.Remove(rec.Elements...)
	var errs []error
	for _, o := range rec.Displaced {
		errs = append(errs, giveBack(k, rec, o))
	}
	for _, fact := range rec.Shared {
		errs = append(errs, release(ctx, k, fact, rec.Owner))
	}
	stale := udpMappings(rec.Elements)
	if len(stale) == 0 && errors.Join(errs...) == nil {
		return k.Finish(ctx, r, rec)
	}
	errs = append(errs, k.NFT.Commit(ctx))
	if len(stale) > 0 {
		forgetFlows(r, k, stale)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return k.Records.Remove(rec.Network, rec.Owner, name)
}

// giveBack queues the ports that rec took over from another attachment of its
// container, if that one is still there. This replaces the removal of rec's.
func giveBack(k *kernel.Kernel, rec *record.Record, to owner.Key) error {
	other, err := k.Records.Find(to, name)
	if err != nil || other == nil {
		return err
	}
	for _, e := range other.Elements {
		same := func(ours nft.Element) bool { return ours.Set == e.Set && bytes.Equal(ours.Key, e.Key) }
		if slices.ContainsFunc(rec.Elements, same) {
			k.NFT.Replace(e)
		}
	}
	return nil
}

// leftovers is what the reference plugin made for an attachment that has no
// record of ours.
func leftovers(r *plugin.Request) nft.Extra {
	var addrs []netip.Addr
	if r.Prev() != nil {
		for _, a := range containerAddrs(r.Prev(), r.IfName) {
			addrs = append(addrs, a.Addr())
		}
	}
	return iptnft.Leftovers(iptnft.Attachment{Network: r.Network, ContainerID: r.ContainerID, IfName: r.IfName}, addrs)
}

// sweep is what it made for attachments that are not valid any more.
func sweep(network string, valid []spec.Attachment) nft.Extra {
	keep := make([]iptnft.Attachment, len(valid))
	for i, a := range valid {
		keep[i] = iptnft.Attachment{Network: network, ContainerID: a.ContainerID, IfName: a.IfName}
	}
	return iptnft.Sweep(network, keep)
}

// withoutRecord makes up a record from what else there is: the facts the owner
// holds, the configuration where it is given, and, where the firewall still
// knows the owner, its elements.
func withoutRecord(r *plugin.Request, k *kernel.Kernel) *record.Record {
	rec := &record.Record{Plugin: name, Network: r.Network, Owner: r.Owner, ContainerID: r.ContainerID, IfName: r.IfName}
	_, known, err := k.NFT.Get(nft.SetOwners, nft.IfName(string(r.Owner)))
	if err != nil {
		kernel.Warn(r, err)
	}
	if p := planFromConf(r); p != nil {
		rec.Elements = p.record().Elements
	}
	if !known {
		return rec
	}
	sets := []string{nft.SetPorts4, nft.SetPorts6, nft.SetHostPorts4, nft.SetHostPorts6,
		nft.SetSNAT4, nft.SetSNAT6, nft.SetMasqAll4, nft.SetMasqAll6, nft.SetOwners}
	held, conditional := heldFacts(r, k)
	rec.Shared = held
	for _, set := range append(sets, conditional...) {
		elems, err := k.NFT.List(set)
		if err != nil {
			kernel.Warn(r, err)
		}
		rec.Elements = append(rec.Elements, ownedBy(r.Owner, elems)...)
	}
	return rec
}

// planFromConf compiles what a DEL was given, as far as that is enough.
func planFromConf(r *plugin.Request) *plan {
	conf, mappings, err := decode(r.Config)
	if err != nil || r.Prev() == nil || len(mappings) == 0 {
		return nil
	}
	p, err := newPlan(r, conf, mappings)
	if err != nil {
		return nil
	}
	return p
}

// heldFacts lists the portmap facts an owner holds, and the maps of those that
// are conditions.
func heldFacts(r *plugin.Request, k *kernel.Kernel) (held, maps []string) {
	holders, facts, err := k.Records.Facts()
	if err != nil {
		kernel.Warn(r, err)
	}
	for _, f := range facts {
		if !isOurs(f.Name) || !slices.Contains(holders[f.Name], r.Owner) {
			continue
		}
		held = append(held, f.Name)
		if f.Conditions != nil {
			maps = append(maps, f.Conditions.Maps()...)
		}
	}
	return held, maps
}

func ownedBy(o owner.Key, elems []nft.Element) (out []nft.Element) {
	for _, e := range elems {
		if k, ok := nft.OwnerOf(e.Comment); ok && k == string(o) {
			out = append(out, e)
		}
	}
	return out
}
