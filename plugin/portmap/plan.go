// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"net/netip"
	"strings"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/kernel"
	"github.com/patchbay-net/patchbay/spec"
)

// plan is everything that one attachment's mappings need. It is computed from the
// configuration and prevResult alone; only route is looked up.
type plan struct {
	owner    owner.Key
	network  string
	id       string // of the container
	comment  string
	snat     bool
	masqAll  bool
	only     *nft.Conditions // nil without conditions
	mappings []mapping
	addrs    []netip.Prefix // the container's first address of each family
	route    string         // the host's interface towards the container, with snat and IPv4
	port     string         // the bridge port that needs hairpin mode
}

func newPlan(r *plugin.Request) *plan {
	c := plugin.ConfOf[Conf](r)
	return &plan{
		owner:    r.Owner,
		network:  r.Network,
		id:       r.ContainerID,
		comment:  nft.Comment(string(r.Owner), r.Network, r.ContainerID, r.IfName),
		snat:     c.snat(),
		masqAll:  c.MasqAll,
		only:     c.only,
		mappings: c.mappings,
		addrs:    containerAddrs(r.Prev(), r.IfName),
	}
}

// trim treats a list whose first token is empty as no list, like the reference.
func trim(conditions []string) []string {
	if language(conditions) == "" {
		return nil
	}
	return conditions
}

// containerAddrs returns the first address of each family that is on ifName in a sandbox,
// or on no interface that prevResult names.
func containerAddrs(prev *spec.Result, ifName string) (addrs []netip.Prefix) {
	var have4, have6 bool
	for _, ip := range prev.IPs {
		if in := prev.Of(ip); in != nil && (in.Name != ifName || in.Sandbox == "") {
			continue
		}
		is4 := ip.Address.Addr().Is4()
		if is4 && have4 || !is4 && have6 {
			continue
		}
		have4, have6 = have4 || is4, have6 || !is4
		addrs = append(addrs, ip.Address)
	}
	return addrs
}

// each calls fn for every mapping and each container address that it serves.
func (p *plan) each(fn func(m mapping, container netip.Addr)) {
	for _, a := range p.addrs {
		for _, m := range p.mappings {
			if m.serves(a.Addr()) {
				fn(m, a.Addr())
			}
		}
	}
}

// unserved lists mappings for a family in which the container has no address.
func (p *plan) unserved() (out []mapping) {
	served := make(map[mapping]bool)
	p.each(func(m mapping, _ netip.Addr) { served[m] = true })
	for _, m := range p.mappings {
		if !served[m] {
			out = append(out, m)
		}
	}
	return out
}

// ports are the elements that other attachments may claim too.
func (p *plan) ports() (elems []nft.Element) {
	p.each(func(m mapping, to netip.Addr) {
		elems = append(elems, nft.Port(m.published(to), p.only, p.comment))
	})
	return elems
}

func (m mapping) published(container netip.Addr) nft.Published {
	return nft.Published{Host: m.host, Protocol: m.protocol, Port: m.hostPort, To: netip.AddrPortFrom(container, m.containerPort)}
}

// own are the elements whose key belongs to the attachment.
func (p *plan) own() []nft.Element {
	elems := []nft.Element{nft.Owner(string(p.owner), p.comment)}
	if !p.snat {
		return elems
	}
	p.each(func(m mapping, to netip.Addr) {
		elems = append(elems, nft.SNAT(m.published(to), p.comment))
	})
	for _, a := range p.addrs {
		elems = append(elems, nft.Neighbours(a, p.comment))
		if p.masqAll {
			elems = append(elems, nft.MasqAll(a.Addr(), p.comment))
		}
	}
	return elems
}

// facts are the facts that the network's attachments share.
func (p *plan) facts() (facts []record.Fact) {
	if p.only != nil {
		facts = append(facts, record.Fact{Name: FactConditions + p.only.ID(), Conditions: p.only})
	}
	return facts
}

// record is the record for DEL.
func (p *plan) record() *record.Record {
	rec := &record.Record{Elements: append(p.own(), p.ports()...)}
	if p.route != "" {
		rec.Shared = append(rec.Shared, factLocalNet+p.route)
	}
	for _, f := range p.facts() {
		rec.Shared = append(rec.Shared, f.Name)
	}
	return rec
}

// compile computes the desired state. It changes nothing. rec is the attachment's record,
// nil where nothing is applied.
func (p *plan) compile(k *kernel.Kernel, rec *record.Record) (s netstate.State) {
	if p.route != "" {
		s = append(s, localNet{p.route, p.network, p.owner, k})
	}
	if p.port != "" {
		s = append(s, hairpinPort{p.port})
	}
	for _, f := range p.facts() {
		s = append(s, netstate.Fact{Fact: f, Owner: p.owner})
	}
	for _, e := range p.own() {
		s = append(s, netstate.Element{Element: e})
	}
	for _, e := range p.ports() {
		s = append(s, claim{netstate.Element{Element: e}, k, p.id, rec})
	}
	return s
}

// The prefixes of the facts' names.
const (
	FactConditions = "conditions-"
	factLocalNet   = "localnet-"
	factHairpin    = "hairpin-" // of an attachment from before schema 2
)

func isOurs(fact string) bool {
	for _, prefix := range [...]string{FactConditions, factLocalNet, factHairpin} {
		if strings.HasPrefix(fact, prefix) {
			return true
		}
	}
	return false
}
