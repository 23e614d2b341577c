// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nft/iptnft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/traces"
	"github.com/patchbay-net/patchbay/plugin"
)

// remove removes everything of one attachment, for DEL and GC. Every step runs even if another
// one failed.
func remove(ctx context.Context, r *plugin.Request, k *kernel.Kernel, rec *record.Record) error {
	k.Withdraw(rec)
	var errs []error
	for _, fact := range rec.Shared {
		errs = append(errs, k.ReleaseFact(ctx, fact, rec.Owner))
	}
	stale, failed := udpMappings(rec.Elements), errors.Join(errs...) != nil
	if len(stale) == 0 && !failed {
		return k.Finish(ctx, r, rec)
	}
	if failed {
		k.Withdraw(rec) // a transaction that failed has emptied the queue
	}
	errs = append(errs, k.NFT.Commit(ctx))
	if len(stale) > 0 {
		forgetFlows(r, k, stale)
	}
	return errors.Join(errs...)
}

// leftovers removes what the reference plugin made for an attachment without a record.
func leftovers(r *plugin.Request) nft.Extra {
	var addrs []netip.Addr
	if r.Prev() != nil {
		for _, a := range containerAddrs(r.Prev(), r.IfName) {
			addrs = append(addrs, a.Addr())
		}
	}
	return iptnft.Leftovers(kernel.Attachment(r), addrs)
}

// reference returns what the reference plugin would have made instead of the plan.
func (p *plan) reference(r *plugin.Request) iptnft.Made {
	ports := make(map[netip.Addr]int)
	p.each(func(_ mapping, to netip.Addr) { ports[to]++ })
	return kernel.Attachment(r).Publishing(slices.Collect(maps.Keys(ports)), func(a netip.Addr) int { return ports[a] })
}

// withoutRecord makes a record from other sources: the facts that the owner holds, the
// configuration if it is given, and the owner's elements in the firewall.
func withoutRecord(r *plugin.Request, k *kernel.Kernel) *record.Record {
	rec := &record.Record{}
	_, known, err := k.NFT.Get(nft.SetOwners, nft.IfName(string(r.Owner)))
	if err != nil {
		kernel.Warn(r, err)
	}
	if _, err := r.Conf(); err == nil && r.Prev() != nil && len(plugin.ConfOf[Conf](r).mappings) > 0 {
		rec.Elements = newPlan(r).record().Elements
	}
	if !known {
		return rec
	}
	all := everything(r, k, r.Owner)
	rec.Shared, rec.Elements = all.Shared, append(rec.Elements, all.Elements...)
	return rec
}

// everything returns a record with the owner's elements in the firewall, except those of the plugin that made the link, and
// the facts that the owner holds.
func everything(r *plugin.Request, k *kernel.Kernel, o owner.Key) *record.Record {
	elems, err := k.Traces().Elements(traces.Scope{Owner: o})
	if err != nil {
		kernel.Warn(r, err)
	}
	return &record.Record{
		Shared:   factsOf(r, k, o),
		Elements: slices.DeleteFunc(elems[o], func(e nft.Element) bool { return !isOfPorts(e) }),
	}
}

// factsOf returns the names of the portmap facts that an owner holds.
func factsOf(r *plugin.Request, k *kernel.Kernel, o owner.Key) []string {
	held, err := k.Records.FactsOf(o)
	if err != nil {
		kernel.Warn(r, err)
	}
	return slices.DeleteFunc(held, func(name string) bool { return !isOurs(name) })
}
