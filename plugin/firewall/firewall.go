// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package firewall is the plugin `firewall`. The plugin lets a container's traffic through the
// host's firewall. If a policy asks for it, it also keeps networks apart.
//
//   - Our own table drops forwarded packets only for a policy or an internal
//     network. So if no other table drops packets either, the plugin adds no
//     accept rule. But if another table drops packets, our table cannot accept
//     them. So if `filter FORWARD` of iptables-nft drops, by
//     policy or by a rule, the plugin adds accept rules there, in DOCKER-USER or
//     CNI-FORWARD: for each subnet on a bridge, and for each other address. The
//     operator's CNI-ADMIN comes before them. If FORWARD of iptables-legacy
//     drops, the plugin cannot help: ADD warns and STATUS fails.
//   - ingressPolicy uses two sets of bridges in the table `inet patchbay`. The
//     operator's rules in the chain `admin` of that table come before them.
//   - fastPath adds established flows between a bridge and the uplinks to a flowtable of the kernel.
//   - With firewalld, the plugin adds the addresses to a zone over D-Bus.
//
// Policies and the accept rules of bridges are the same for every attachment and are removed
// with the last one. Accept rules of addresses belong to one attachment. DEL needs only the
// record.
package firewall

import (
	"context"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nft/iptnft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

const (
	name   = "firewall"
	noPrev = "missing prevResult from earlier plugin"
)

// Plugin has the name, the versions and the functions of this plugin.
var Plugin = plugin.Plugin{
	Name:       name,
	Kind:       plugin.Chained,
	About:      "lets a container through the host's firewall and keeps networks apart",
	MinVersion: "0.4.0",
	Conf:       func() any { return new(Conf) },
	NoPrev:     plugin.NoPrev{Add: noPrev, Check: noPrev},
	Warnings:   doubts,

	Add:    add,
	Del:    del,
	Check:  check,
	GC:     gc,
	Status: status,
}

// add returns the previous result unchanged.
func add(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
	conf, k := plugin.ConfOf[Conf](r), kernel.Of(r)
	env, err := k.HostEnv(r)
	if err != nil {
		return nil, err
	}
	p, err := newPlan(ctx, r, conf, env)
	if err != nil {
		return nil, err
	}
	if err := iptnft.LegacyDrops(r.Session.Paths.Proc, p.subnets); err != nil {
		kernel.Warn(r, err)
	}
	earlier, _ := k.Records.Read(r.Network, r.Owner, name) // a broken record is replaced
	p.repeated = earlier != nil
	if err := k.Record(r, p.record(earlier)); err != nil {
		return nil, err
	}
	if err := k.Apply(ctx, r, env, p.compile(k)); err != nil {
		return nil, err
	}
	if err := p.refusePoliciesSince(k); err != nil {
		return nil, err
	}
	if earlier != nil && len(earlier.Accepts) > 0 && earlier.AdminChain != p.adminChain() && r.Session.Dry == nil {
		k.NFT.Queue(iptnft.LeaveAdmin(earlier.AdminChain, func() bool { return netstate.AdminNamed(k.Records, earlier.AdminChain, "") }))
	}
	return r.Prev(), nil
}

// check compares the kernel and firewalld with the state that ADD made.
func check(ctx context.Context, r *plugin.Request) error {
	conf, k := plugin.ConfOf[Conf](r), kernel.Of(r)
	env, err := k.HostEnv(r)
	if err != nil {
		return err
	}
	p, err := newPlan(ctx, r, conf, env)
	if err != nil {
		return err
	}
	if rec, err := k.Records.Read(r.Network, r.Owner, name); err == nil && rec != nil {
		p.flowsAsAttached(k, rec)
		if p.daemon == nil {
			p.asAttached(k, rec)
		}
	}
	return k.AllowReference(r, iptnft.Accepting(addresses(ctx, r)), kernel.Check(ctx, env, p.compile(k)))
}

// gc removes what belongs to attachments that are no longer valid.
func gc(ctx context.Context, r *plugin.Request) error {
	k := kernel.Of(r)
	return k.Sweep(ctx, r, func(rec *record.Record) error { return remove(ctx, r, k, rec) })
}

// status reports whether an ADD could work, and whether its rules would have an effect.
func status(ctx context.Context, r *plugin.Request) error {
	if err := kernel.Of(r).NFT.Status(); err != nil {
		return spec.Errorf(spec.CodeNotAvailable, "firewall cannot be changed: %w", err)
	}
	if plugin.ConfOf[Conf](r).FastPath {
		if err := offloads(kernel.Of(r).NFT); err != nil {
			return err
		}
	}
	if plugin.ConfOf[Conf](r).Backend == backendFirewalld {
		d, err := connect(ctx)
		if err != nil {
			return spec.Errorf(spec.CodeNotAvailable, "backend firewalld: %w", err)
		}
		d.close()
	}
	if err := iptnft.LegacyDrops(r.Session.Paths.Proc, nil); err != nil {
		return spec.Errorf(spec.CodeLimited, "%w", err)
	}
	return nil
}

// plan holds everything that one attachment needs in the firewall.
type plan struct {
	owner   owner.Key
	comment string // comment of the attachment's elements
	network string
	conf    *Conf
	bridge  string // "" if there is no policy
	subnets []netip.Prefix
	sources []netip.Prefix
	daemon  *daemon // nil means nftables

	flows       []record.Fact  // of the fast path
	newFastPath string         // the bridge, if it had no fast path before
	accepts     []record.Fact  // subnets on the bridge
	addresses   []netip.Prefix // accepted from any link
	repeated    bool           // this attachment had an ADD before
}

// newPlan refuses what cannot work, before anything is changed.
func newPlan(ctx context.Context, r *plugin.Request, c *Conf, env *netstate.Env) (*plan, error) {
	if err := plugin.CheckPrefixes(r.Prev()); err != nil {
		return nil, err
	}
	p := &plan{owner: r.Owner, comment: nft.Comment(string(r.Owner), r.Network, r.ContainerID, r.IfName), network: r.Network, conf: c, subnets: subnets(r.Prev()), sources: sources(r.Prev())}
	if c.isolates() {
		var err error
		if p.bridge, err = c.bridge(r.Prev()); err != nil {
			return nil, err
		}
	}
	if c.FastPath {
		if err := p.planFastPath(r, env); err != nil {
			return nil, err
		}
	}
	if err := p.connect(ctx, r); err != nil {
		return nil, err
	}
	if p.daemon == nil {
		p.accept(r, env)
	}
	return p, nil
}

// connect connects to firewalld if the backend allows it.
func (p *plan) connect(ctx context.Context, r *plugin.Request) error {
	if p.conf.Backend == backendIPTables {
		return nil
	}
	d, err := connect(ctx)
	if p.conf.Backend == backendFirewalld && err != nil {
		return spec.Errorf(spec.CodeNotAvailable, "backend firewalld: %w", err)
	}
	if err == nil {
		p.daemon = d
		r.Session.OnClose(d.close)
	}
	return nil
}

// facts returns the facts that the network's attachments share.
func (p *plan) facts() (facts []record.Fact) {
	facts = slices.Concat(p.accepts, p.flows)
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

// record returns the record for DEL. The record includes what an earlier ADD of the attachment
// holds.
func (p *plan) record(earlier *record.Record) *record.Record {
	rec := &record.Record{Bridge: p.bridge, Accepts: p.addresses, Open: p.conf.AcceptNew && len(p.addresses) > 0}
	if len(p.addresses) > 0 {
		rec.AdminChain = p.adminChain()
	}
	for _, f := range p.facts() {
		rec.Shared = append(rec.Shared, f.Name)
	}
	if p.daemon != nil {
		rec.Zone, rec.Sources = p.conf.FirewalldZone, p.sources
		for _, s := range p.zoneSources(nil) {
			rec.Shared = append(rec.Shared, s.fact())
		}
	}
	if earlier != nil {
		rec.Shared = append(rec.Shared, slices.DeleteFunc(earlier.Shared, func(f string) bool { return slices.Contains(rec.Shared, f) })...)
	}
	return rec
}

// compile computes the desired state. compile changes nothing.
func (p *plan) compile(k *kernel.Kernel) (s netstate.State) {
	for _, f := range p.facts() {
		s = append(s, netstate.HeldFact{Fact: f, Owner: p.owner})
	}
	if len(p.addresses) > 0 {
		s = append(s, netstate.Accepted{Addrs: p.addresses, Open: p.conf.AcceptNew, AdminChain: p.adminChain(), Comment: p.comment, New: !p.repeated})
	}
	if p.daemon != nil {
		for _, a := range p.zoneSources(k.Records) {
			s = append(s, a)
		}
	}
	return s
}

// zoneSources returns the attachment's addresses in its firewalld zone.
func (p *plan) zoneSources(records *record.Dir) (list []source) {
	for _, a := range p.sources {
		list = append(list, source{p.daemon, p.conf.FirewalldZone, a, p.owner, records})
	}
	return list
}

// The names of facts begin with these prefixes.
const (
	factAccept     = "accept-"
	factIsolation  = "isolation-"
	factSameBridge = "samebridge-"
	factApart      = "apart-"
	factSource     = "source-"
)
