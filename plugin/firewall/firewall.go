// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package firewall is the plugin `firewall`: it lets a container's traffic
// through the host's firewall, and keeps networks apart where a policy asks for
// it.
//
//   - Nothing in our table drops a container's traffic but a policy, so on most
//     nodes there is nothing to accept. But what another table drops, ours cannot
//     accept: where `filter FORWARD` of iptables-nft drops, by policy or by a
//     rule, each network gets its accept there, in DOCKER-USER or CNI-FORWARD,
//     behind the operator's CNI-ADMIN. A FORWARD of iptables-legacy that drops
//     is out of reach: ADD warns and STATUS fails.
//   - ingressPolicy is two sets of bridges in the table `inet patchbay`; the
//     operator's overrides come before them, in the chain `admin` of that table.
//   - firewalld is asked over D-Bus to take the addresses into a zone.
//
// All but firewalld's sources is the same for every attachment of a network and
// goes with the last of them. DEL needs the record alone.
package firewall

import (
	"context"
	"errors"
	"net/netip"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nft/iptnft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

const name = "firewall"

// Plugin is the plugin.
var Plugin = plugin.Plugin{
	Name:       name,
	Kind:       plugin.Chained,
	About:      "lets a container through the host's firewall and keeps networks apart",
	MinVersion: "0.4.0",
	Conf:       func() any { return new(Conf) },

	Add:    add,
	Del:    del,
	Check:  check,
	GC:     gc,
	Status: status,
}

// add passes the previous result through.
func add(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
	conf, err := decode(r)
	if err != nil {
		return nil, err
	}
	p, err := newPlan(ctx, r, conf)
	if err != nil {
		return nil, err
	}
	k := kernel.Of(r)
	env, err := k.HostEnv(r)
	if err != nil {
		return nil, err
	}
	if err := legacyDrops(r, p.subnets); err != nil {
		kernel.Warn(r, err)
	}
	if err := k.Record(r, p.record()); err != nil {
		return nil, err
	}
	if err := k.Apply(ctx, r, env, p.compile(k)); err != nil {
		return nil, err
	}
	return r.Prev(), nil
}

// check compares the kernel, and firewalld, with what ADD made.
func check(ctx context.Context, r *plugin.Request) error {
	conf, err := decode(r)
	if err != nil {
		return err
	}
	p, err := newPlan(ctx, r, conf)
	if err != nil {
		return err
	}
	k := kernel.Of(r)
	env, err := k.HostEnv(r)
	if err != nil {
		return err
	}
	return k.Excuse(r, name, leftovers(ctx, r), kernel.Check(ctx, env, p.compile(k)))
}

// gc removes what belongs to attachments that are not valid any more.
func gc(ctx context.Context, r *plugin.Request) error {
	k := kernel.Of(r)
	stale, _ := k.Stale(r, name)
	var errs []error
	for _, rec := range stale {
		errs = append(errs, remove(ctx, r, k, rec))
	}
	return errors.Join(errs...)
}

// status says whether an ADD could work, and whether its promise would hold.
func status(ctx context.Context, r *plugin.Request) error {
	conf, err := decode(r)
	if err != nil {
		return err
	}
	if err := kernel.Of(r).NFT.Status(); err != nil {
		return spec.Errorf(spec.CodeNotAvailable, "firewall cannot be changed: %w", err)
	}
	if conf.Backend == backendFirewalld {
		d, err := connect(ctx)
		if err != nil {
			return spec.Errorf(spec.CodeNotAvailable, "backend firewalld: %w", err)
		}
		d.close()
	}
	if err := legacyDrops(r, nil); err != nil {
		return spec.Errorf(spec.CodeLimited, "%w", err)
	}
	return nil
}

// plan is everything one attachment leads to.
type plan struct {
	owner   owner.Key
	network string
	conf    *Conf
	bridge  string // "" without a policy
	subnets []netip.Prefix
	sources []netip.Prefix
	daemon  *daemon // nil: nftables
}

// newPlan refuses what cannot be done before anything is.
func newPlan(ctx context.Context, r *plugin.Request, c *Conf) (*plan, error) {
	if r.Prev() == nil {
		return nil, invalid("missing prevResult from earlier plugin")
	}
	p := &plan{owner: r.Owner, network: r.Network, conf: c, subnets: subnets(r.Prev()), sources: sources(r.Prev())}
	if c.isolates() {
		var err error
		if p.bridge, err = c.bridge(r.Prev()); err != nil {
			return nil, err
		}
	}
	if c.Backend == backendIPTables {
		return p, nil
	}
	d, err := connect(ctx)
	if c.Backend == backendFirewalld && err != nil {
		return nil, spec.Errorf(spec.CodeNotAvailable, "backend firewalld: %w", err)
	}
	if err == nil {
		p.daemon = d
		r.Session.OnClose(d.close)
	}
	return p, nil
}

// facts are what the network's attachments share.
func (p *plan) facts() (facts []record.Fact) {
	if p.daemon == nil {
		for _, s := range p.subnets {
			facts = append(facts, p.accept(s))
		}
	}
	if p.bridge == "" {
		return facts
	}
	within := record.Fact{Name: factApart + p.bridge, Elements: []nft.Element{nft.Apart(p.bridge, p.network)}}
	if p.conf.IngressPolicy == policySameBridge {
		within = record.Fact{Name: factSameBridge + p.bridge, Elements: []nft.Element{nft.SameBridge(p.bridge, p.network)}}
	}
	return append(facts, record.Fact{
		Name:     factIsolation + p.bridge,
		Elements: []nft.Element{nft.Isolate(p.bridge, p.network)},
	}, within)
}

// accept is the fact of a subnet. The operator's chain is part of its name when
// it is not the usual one.
func (p *plan) accept(subnet netip.Prefix) record.Fact {
	f := record.Fact{Name: factAccept + subnet.String(), Accepts: []netip.Prefix{subnet}}
	if chain := p.conf.IptablesAdminChainName; chain != iptnft.DefaultAdminChain {
		f.Name, f.AdminChain = f.Name+"-"+chain, chain
	}
	return f
}

// record is what DEL needs.
func (p *plan) record() *record.Record {
	rec := &record.Record{Plugin: name, Bridge: p.bridge}
	for _, f := range p.facts() {
		rec.Shared = append(rec.Shared, f.Name)
	}
	if p.daemon != nil {
		rec.Zone, rec.Sources = p.conf.FirewalldZone, p.sources
	}
	return rec
}

// compile is the desired state. It touches nothing.
func (p *plan) compile(k *kernel.Kernel) (s netstate.State) {
	for _, f := range p.facts() {
		s = append(s, netstate.Fact{Fact: f, Owner: p.owner, Records: k.Records})
	}
	if p.daemon != nil {
		for _, a := range p.sources {
			s = append(s, source{p.daemon, p.conf.FirewalldZone, a})
		}
	}
	return s
}

// The names of the facts begin with what they are about.
const (
	factAccept     = "accept-"
	factIsolation  = "isolation-"
	factSameBridge = "samebridge-"
	factApart      = "apart-"
)
