// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// plan holds everything that the mappings of one attachment need. It is computed from the
// configuration and prevResult. Only route is read from the kernel.
type plan struct {
	owner    owner.Key
	network  string
	id       string // container id
	comment  string
	snat     bool
	masqAll  bool
	only     *nft.Conditions // nil if there are no conditions
	mappings []mapping
	addrs    []netip.Prefix // the container's first address of each family
	route    string         // the host's interface towards the container; set only with snat and IPv4
	port     string         // bridge port that needs hairpin mode

	// caches of ports and own, because a container may publish tens of thousands of ports
	cachedPorts, cachedOwn []nft.Element
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

// trim treats a list whose first token is empty as no list, as the reference does.
func trim(conditions []string) []string {
	if language(conditions) == "" {
		return nil
	}
	return conditions
}

// containerAddrs returns the container's first address of each family.
func containerAddrs(prev *spec.Result, ifName string) (addrs []netip.Prefix) {
	var have4, have6 bool
	for _, ip := range prev.IPsOf(ifName) {
		is4 := ip.Address.Addr().Is4()
		if is4 && have4 || !is4 && have6 {
			continue
		}
		have4, have6 = have4 || is4, have6 || !is4
		addrs = append(addrs, ip.Address)
	}
	return addrs
}

// each calls fn for every mapping, with each container address that the mapping serves.
func (p *plan) each(fn func(m mapping, container netip.Addr)) {
	for _, a := range p.addrs {
		for _, m := range p.mappings {
			if m.serves(a.Addr()) {
				fn(m, a.Addr())
			}
		}
	}
}

// unserved returns the mappings that are only for a family in which the container has no address.
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

// ports returns the elements whose keys other attachments may publish too.
func (p *plan) ports() []nft.Element {
	if p.cachedPorts == nil {
		elems := make([]nft.Element, 0, len(p.mappings))
		p.each(func(m mapping, to netip.Addr) {
			elems = append(elems, nft.Port(m.published(to), p.only, p.comment))
		})
		p.cachedPorts = slices.Clip(elems)
	}
	return p.cachedPorts
}

func (m mapping) published(container netip.Addr) nft.Published {
	return nft.Published{Host: m.host, Protocol: m.protocol, Port: m.hostPort, To: netip.AddrPortFrom(container, m.containerPort)}
}

// own returns the elements whose key no other attachment can have.
func (p *plan) own() []nft.Element {
	if p.cachedOwn == nil {
		p.cachedOwn = slices.Clip(p.makeOwn())
	}
	return p.cachedOwn
}

func (p *plan) makeOwn() []nft.Element {
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

// facts returns the facts that the network's attachments share.
func (p *plan) facts() (facts []record.Fact) {
	if p.only != nil {
		facts = append(facts, record.Fact{Name: FactConditions + p.only.ID(), Conditions: p.only})
	}
	return facts
}

// record returns the record for DEL.
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

// compile computes the desired state. compile changes nothing. rec is the attachment's record;
// it is nil if nothing will be applied.
func (p *plan) compile(k *kernel.Kernel, rec *record.Record) (s netstate.State) {
	if p.route != "" {
		s = append(s, localNet{p.route, p.network, p.owner, k})
	}
	if p.port != "" {
		s = append(s, hairpinPort{p.port})
	}
	for _, f := range p.facts() {
		s = append(s, netstate.HeldFact{Fact: f, Owner: p.owner})
	}
	for _, e := range p.own() {
		s = append(s, netstate.Element{Element: e})
	}
	holders := make(map[string]holder)
	for _, e := range p.ports() {
		s = append(s, hostPort{netstate.Element{Element: e}, k, p.id, rec, holders})
	}
	return s
}

// The names of facts begin with these prefixes.
const (
	FactConditions = "conditions-"
	factLocalNet   = "localnet-"
)

func isOurs(fact string) bool {
	return strings.HasPrefix(fact, FactConditions) || strings.HasPrefix(fact, factLocalNet)
}

// hostPort is the element of a published port. Another owner may have it.
type hostPort struct {
	netstate.Element
	k         *kernel.Kernel
	container string
	rec       *record.Record    // nil in CHECK
	holders   map[string]holder // by comment; a container may have thousands of ports that all belong to another one
}

// Ensure queues the element. The port's owner is known only when the queue is committed, so the
// owner is checked then.
func (c hostPort) Ensure(_ context.Context, env *netstate.Env) (netstate.Undo, error) {
	env.NFT.AddOrDecide(func(conflict *nft.ConflictError) error {
		o := c.ownerOf(conflict.Have)
		switch {
		case o.rec != nil && o.rec.ContainerID == c.container:
			return c.k.Displace(c.rec, o.rec.Owner)
		case o.alive:
			return spec.Invalid("%w", &PortInUseError{Want: conflict.Want, Holder: o.rec, owner: o.name}).
				WithDetails("%s; the other's mapping is %s", conflict.Want, conflict.Have)
		}
		env.Warn(fmt.Errorf("took over %s, %s", conflict.Have, o.whyReplaceable()))
		return nil
	}, c.Element.Element)
	return nil, nil
}

// PortInUseError means that another container has a host port.
type PortInUseError struct {
	Want   nft.Element
	Holder *record.Record // nil if it cannot be read
	owner  string
}

// Error names the holder completely, because the runtime's logs show only this error.
func (e *PortInUseError) Error() string {
	return "host port " + e.Port() + " is taken by " + e.owner
}

// Port returns the port as people write it, such as 8080/tcp or 127.0.0.1:53/udp.
func (e *PortInUseError) Port() string {
	return strings.TrimPrefix(e.Want.Meaning().What, "published port ")
}

// Lost reports nothing if another attachment of the same container has the port, because that
// attachment publishes the port too.
func (c hostPort) Lost(ctx context.Context, env *netstate.Env) ([]netstate.Lost, error) {
	lost, err := c.Element.Lost(ctx, env)
	if len(lost) == 0 || err != nil {
		return lost, err
	}
	have, ok, err := env.NFT.Get(c.Set, c.Key)
	if ok && err == nil && c.siblings(have) {
		return nil, nil
	}
	return lost, err
}

// siblings reports whether another attachment of the same container made the element.
func (c hostPort) siblings(have nft.Element) bool {
	mine, _ := nft.OwnerOf(c.Comment)
	o := c.ownerOf(have)
	return o.rec != nil && o.rec.ContainerID == c.container && string(o.rec.Owner) != mine &&
		slices.ContainsFunc(o.rec.Elements, func(e nft.Element) bool { return e.SameKey(have) && bytes.Equal(e.Data, have.Data) })
}

// holder is the owner of a published port.
type holder struct {
	name  string
	rec   *record.Record // nil if it has none
	alive bool
}

// whyReplaceable says why another attachment may take over the holder's port.
func (h holder) whyReplaceable() string {
	if h.name == "" {
		return "which is no attachment's"
	}
	return "of " + h.name + ", which is gone"
}

func (c hostPort) ownerOf(e nft.Element) holder {
	h, ok := c.holders[e.Comment]
	if !ok {
		h = ownerOf(c.k, e)
		c.holders[e.Comment] = h
	}
	return h
}

// ownerOf names the owner of an element and reports whether the owner is alive. If the owner's
// record or namespace is gone, the owner is dead. If this cannot be checked, the owner counts as
// alive.
func ownerOf(k *kernel.Kernel, e nft.Element) holder {
	key, ok := nft.OwnerOf(e.Comment)
	if !ok {
		return holder{}
	}
	h := holder{name: fmt.Sprintf("%q", e.Comment)}
	rec, err := k.Records.Find(owner.Key(key), name)
	if err != nil || rec == nil {
		h.alive = err != nil
		return h
	}
	h.name = fmt.Sprintf("container %s (network %s, interface %s)", rec.ContainerID, rec.Network, rec.IfName)
	if rec.Pod != "" {
		h.name = "pod " + rec.Pod + ", " + h.name
	}
	h.rec, h.alive = rec, k.Lives(rec) // do not check the address: a virtual machine may have taken it off the pod's interface
	return h
}

// findRoute finds the host's interface that leads to the container: the bridge, or the host's end
// of a veth. Without a route, published ports do not work from 127.0.0.1 and from the container
// itself. Like the reference, findRoute does not report this. If the host itself has the
// container's address, findRoute returns an error. Otherwise the ports would lead to services on
// the host, and loopback would count as the interface to the container.
func (p *plan) findRoute(r *plugin.Request, env *netstate.Env) error {
	for _, a := range p.addrs {
		link, err := routeTo(env, a.Addr())
		switch {
		case errors.Is(err, errLocal):
			return spec.Invalid("cannot publish ports of %s: %w; give the container an address of its own", a.Addr(), err)
		case err != nil && !nl.IsNoRoute(err):
			return err // a result without route_localnet would claim ports that do not work
		case err != nil || a != p.routed() || !p.snat || r.Session.Dry != nil:
			continue
		}
		if p.port, err = findPort(r, env, link); err != nil {
			return err
		}
		p.setRoute(link.Attrs().Name)
	}
	if r.Session.Dry != nil && p.snat {
		p.setRoute(firstHostInterface(r.Prev())) // in a dry run there is no interface yet
	}
	return nil
}

// routed returns the address whose route counts: the IPv4 address, because 127.0.0.1 leads to no other.
func (p *plan) routed() netip.Prefix {
	i := slices.IndexFunc(p.addrs, func(a netip.Prefix) bool { return a.Addr().Is4() })
	return p.addrs[max(i, 0)]
}

// setRoute sets the interface that leads to the container. Only IPv4 mappings need the interface.
func (p *plan) setRoute(link string) {
	if slices.ContainsFunc(p.addrs, func(a netip.Prefix) bool { return a.Addr().Is4() }) {
		p.route = link
	}
}

// errLocal means that the address belongs to the host itself.
var errLocal = errors.New("the host has this address itself")

func routeTo(env *netstate.Env, a netip.Addr) (netlink.Link, error) {
	index, kind, err := env.Host.RouteTo(a)
	if err != nil {
		return nil, err
	}
	if index == 0 {
		return nil, fmt.Errorf("find route to %s: %w", a, unix.ENETUNREACH)
	}
	link, err := env.Host.LinkAt(index)
	if err != nil {
		return nil, err
	}
	env.Remember(netstate.Host, link)
	if kind == unix.RTN_LOCAL || link.Attrs().Flags&net.FlagLoopback != 0 {
		return nil, errLocal
	}
	return link, nil
}

// firstHostInterface returns the interface that leads to the container according to the
// chain's first plugin: the bridge or, if there is none, the veth.
func firstHostInterface(prev *spec.Result) string {
	for _, i := range prev.Interfaces {
		if i.Sandbox == "" {
			return i.Name
		}
	}
	return ""
}
