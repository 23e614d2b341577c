// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/nft/iptnft"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/traces"
	"github.com/patchbay-net/patchbay/ipam"
	"github.com/patchbay-net/patchbay/plugin"
)

// del removes what the record names. If there is no record, the reference may have made the
// attachment; then del finds the rules by name and address.
func del(ctx context.Context, r *plugin.Request) error {
	k := kernel.Of(r)
	lost := func() *record.Record {
		k.NFT.Queue(iptnft.Leftovers(kernel.Attachment(r), addresses(ctx, r)))
		k.NFT.Queue(iptnft.Unaccept(iptnft.Owned(string(r.Owner)), adminChain(r)))
		return withoutRecord(r, k)
	}
	return k.Detach(r, lost, func(rec *record.Record) error { return remove(ctx, r, k, rec) })
}

// remove removes everything of one attachment, for DEL and GC. Every step runs even if another
// one failed.
func remove(ctx context.Context, r *plugin.Request, k *kernel.Kernel, rec *record.Record) error {
	var errs []error
	sources, facts := sourcesOf(rec)
	for _, fact := range facts {
		errs = append(errs, k.ReleaseFact(ctx, fact, rec.Owner))
	}
	if len(rec.Accepts) > 0 {
		k.NFT.Queue(iptnft.Unaccept(iptnft.Owned(string(rec.Owner)), rec.AdminChain))
	}
	errs = append(errs, k.NFT.Start(ctx), leaveZones(ctx, r, k, rec.Owner, sources))
	return errors.Join(errs...)
}

// withoutRecord makes a record from the facts that the owner holds. Like the reference, it
// also adds the addresses of prevResult in the zone of the configuration.
func withoutRecord(r *plugin.Request, k *kernel.Kernel) *record.Record {
	rec := &record.Record{}
	held, err := k.Records.FactsOf(r.Owner)
	if err != nil {
		kernel.Warn(r, err)
	}
	for _, fact := range held {
		if isOurs(fact) {
			rec.Shared = append(rec.Shared, fact)
		}
	}
	conf := plugin.ConfOf[Conf](r)
	if _, err := r.Conf(); err == nil && conf.Backend != backendIPTables && r.Prev() != nil {
		rec.Zone, rec.Sources = conf.FirewalldZone, sources(r.Prev())
	}
	return rec
}

// adminChain returns the configuration's chain. It returns "" if a DEL has none.
func adminChain(r *plugin.Request) string {
	if _, err := r.Conf(); err != nil {
		return ""
	}
	return plugin.ConfOf[Conf](r).IptablesAdminChainName
}

func isOurs(fact string) bool {
	for _, prefix := range [...]string{factAccept, factIsolation, factSameBridge, factApart, factSource, record.FastPathFact("")} {
		if strings.HasPrefix(fact, prefix) {
			return true
		}
	}
	return false
}

// addresses returns the addresses of an attachment: from prevResult or, if there is none, from
// the files of host-local. In a DEL host-local runs after this plugin, so its files still exist.
func addresses(ctx context.Context, r *plugin.Request) (out []netip.Addr) {
	if r.Prev() != nil {
		for _, s := range sources(r.Prev()) {
			out = append(out, s.Addr())
		}
		return out
	}
	held, err := traces.Reserved(ctx, traces.Pool(r.Session.Paths, r.Network, ""), ipam.Holder{ID: r.ContainerID, IfName: r.IfName})
	if err != nil {
		kernel.Warn(r, err)
	}
	for _, h := range held {
		out = append(out, h.Addr)
	}
	return out
}

// Restore adds the addresses of a record to their zone again and returns those that were
// missing. A reload of firewalld removes them. `patchbay repair` calls Restore in addition to
// restoring elements.
func Restore(ctx context.Context, rec *record.Record) (added []netip.Prefix, err error) {
	if len(rec.Sources) == 0 {
		return nil, nil
	}
	d, err := connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("restore zone %s: %w", rec.Zone, err)
	}
	defer d.close()
	var errs []error
	for _, s := range rec.Sources {
		missing, err := d.add(ctx, rec.Zone, s)
		if missing {
			added = append(added, s)
		}
		errs = append(errs, err)
	}
	return added, errors.Join(errs...)
}
