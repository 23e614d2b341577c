// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"

	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/store"
)

// apply makes this host be what the world says: configurations, the fabric and
// the names. What is only remembered is not complete, so nothing goes by it.
// With all, the kernel is compared even if nothing is new.
func (a *Agent) apply(ctx context.Context, all bool) {
	w, known, synced := a.mirror.snapshot()
	if !known {
		return // the first time, and the store is away: there is nothing to go by
	}
	self, uplink := a.way()
	parts, wrong := a.parts(&w, self, uplink)
	if synced {
		a.said.tell("bridges", a.tidy(&w, parts)) // before routes to where they lead
	}
	a.said.tell("data of the store", a.mirror.lost())
	a.said.tellAll("network", wrong)
	a.said.tellAll("configuration of", a.configure(parts, synced))
	a.lean(parts)
	if uplink > 0 {
		a.carry(ctx, &w, self, parts, all)
	}
	if len(a.opts.DNS) > 0 {
		containers, _ := a.here()
		a.view.look(&w, a.self.ID, containers)
	}
	a.said.tell("names", a.names.Listen(a.listening(parts)))
	a.said.tellAll("Docker network", a.stale(parts))
	if synced {
		a.mirror.refresh(&w) // what was remembered meanwhile
		a.said.tell("cache", a.save(&w, all))
	}
	a.said.tell("status", a.saveStatus())
}

// way is this host as others reach it, and the MTU of the way to them, in bytes;
// 0 while there is none. Then names are answered and configurations stay.
func (a *Agent) way() (self store.Node, uplink int) {
	self, err := a.node()
	if a.said.tell("uplink", err); err == nil {
		uplink, err = a.opts.Fabric.UplinkMTU(self.Underlay)
		a.said.tell("uplink's address", err) // the loop of the store knows nothing of it
	}
	if err != nil {
		a.lost = true
		return self, 0
	}
	a.lost = false
	if !slices.Equal(self.Underlay, a.reached) {
		a.reached = self.Underlay
		ring(a.upstream) // the others have to know soon
	}
	return self, uplink
}

// carry tells the fabric of this host and the others, when there is anything new.
func (a *Agent) carry(ctx context.Context, w *world, self store.Node, parts []part, all bool) {
	host, peers := meshOf(w, self, parts)
	next := meshed{host, peers, true}
	if !all && reflect.DeepEqual(next, a.meshed) {
		return
	}
	err := a.opts.Fabric.Apply(ctx, host, peers)
	next.done = err == nil
	a.said.tell("fabric", err)
	a.meshed = next
}

// meshed is what the fabric was told last.
type meshed struct {
	self  mesh.Self
	peers []mesh.Peer
	done  bool // without an error
}

// part is one network as this host takes part in it.
type part struct {
	plan
	holding
	ready bool // it can be configured
	soon  bool // it stays as it was: its blocks are about to be claimed again

	masquerade, unsettled bool // see mesh.Subnet
}

// parts are the networks of this host, and what is wrong with some. Uplink is
// the MTU of the way to the other hosts, in bytes.
func (a *Agent) parts(w *world, self store.Node, uplink int) (out []part, wrong map[string]error) {
	networks, wrong := a.usable(w, self.Underlay)
	for _, n := range networks {
		h := holdingOf(&n, a.self.ID, w.blocksOf(n.Name), w.Own[n.Name])
		p := part{plan: plan{Network: n, Blocks: h.have, DNS: a.answers(n.Name)}, holding: h, ready: h.complete() && uplink > 0}
		p.soon = len(h.lost) == 0 && len(h.missing) > 0 && remembered(&n, h.missing, w.Own[n.Name])
		if len(h.lost) > 0 || p.soon {
			p.Blocks = w.Own[n.Name] // they are in use here until `used` says otherwise
		}
		p.MTU = n.MTU
		if p.MTU == 0 {
			p.MTU = mesh.ContainerMTU(uplink, mesh.Transport(n.Transport), self.Underlay)
		}
		out = append(out, p)
	}
	return out, wrong
}

// remembered says whether this node had a block of each subnet.
func remembered(n *store.Network, subnets, own []netip.Prefix) bool {
	return !slices.ContainsFunc(subnets, func(s netip.Prefix) bool {
		return !slices.ContainsFunc(own, func(b netip.Prefix) bool { return fits(n, s, b) })
	})
}

// answers says whether our resolver is for a network's containers.
func (a *Agent) answers(network string) bool {
	return slices.Contains(a.opts.DNS, "*") || slices.Contains(a.opts.DNS, network)
}

// usable are the networks that this host can take part in, and why not in the
// others. Of two that overlap it is the one that the host has a block of already.
// Nothing is done for the others: both loops ask here, before everything.
func (a *Agent) usable(w *world, underlay []netip.Addr) (out []store.Network, wrong map[string]error) {
	wrong = map[string]error{}
	all := slices.Clone(w.Networks)
	slices.SortStableFunc(all, func(a, b store.Network) int { return cmp.Compare(len(w.Own[b.Name]), len(w.Own[a.Name])) })
	for _, n := range all {
		err := errors.Join(Check(&n), apart(&n, out), outside(&n, underlay))
		if err == nil {
			err = a.inTheWay(w, &n)
		}
		if err != nil {
			wrong[n.Name] = err
			continue
		}
		out = append(out, n)
	}
	return out, wrong
}

// apart refuses a network that overlaps another.
func apart(n *store.Network, others []store.Network) error {
	for _, o := range others {
		for _, s := range n.Subnets {
			if i := slices.IndexFunc(o.Subnets, s.Overlaps); i >= 0 && o.Name != n.Name {
				return fmt.Errorf("subnet %s overlaps %s of network %s", s, o.Subnets[i], o.Name)
			}
		}
	}
	return nil
}

// outside refuses a network that has the hosts' own addresses in it.
func outside(n *store.Network, underlay []netip.Addr) error {
	for _, addr := range underlay {
		if i := slices.IndexFunc(n.Subnets, func(s netip.Prefix) bool { return s.Contains(addr) }); i >= 0 {
			return fmt.Errorf("subnet %s has this host's own address %s in it", n.Subnets[i], addr)
		}
	}
	return nil
}

// configure writes the configurations of networks that have their blocks, and
// removes those of others.
func (a *Agent) configure(parts []part, synced bool) (wrong map[string]error) {
	wrong = map[string]error{}
	keep := map[string]bool{}
	for _, p := range parts {
		keep[p.Network.Name] = p.complete() || p.soon
		if !p.ready {
			continue
		}
		a.mirror.remember(p.Network.Name, p.have) // before an address of it is given to a container
		data, err := render(&p.plan)
		if err == nil {
			err = writeConf(a.opts.ConfDir, p.Network.Name, data)
		}
		if err != nil {
			wrong[p.Network.Name] = err
		}
	}
	if !synced {
		return wrong
	}
	removed, err := removeConfs(a.opts.ConfDir, func(network string) bool { return keep[network] })
	if err != nil {
		wrong["networks that are no more"] = err
	}
	for _, network := range removed {
		a.opts.Log("network %s: configuration removed", network)
	}
	return wrong
}

// meshOf is this host and the others with their blocks. A host that is not
// present is reached as before: it may be cut off from the store alone.
func meshOf(w *world, self store.Node, parts []part) (mesh.Self, []mesh.Peer) {
	out := mesh.Self{ID: self.ID, Underlay: self.Underlay, Port: self.Port}
	var peers []mesh.Peer
	for _, p := range parts {
		for _, s := range p.Network.Subnets {
			out.Subnets = append(out.Subnets, mesh.Subnet{Network: p.Network.Name, Prefix: s, Masquerade: p.masquerade, Unsettled: p.unsettled})
		}
		out.Blocks = append(out.Blocks, p.Blocks...)
		blocks := blocksOfPeers(w, &p)
		for _, n := range w.Nodes {
			if len(blocks[n.ID]) > 0 && n.ID != self.ID {
				peers = append(peers, peerOf(&p, &n, blocks[n.ID]))
			}
		}
	}
	return out, peers
}

// blocksOfPeers are the others' blocks of a network by node, but for those that
// were this host's and are in use here.
func blocksOfPeers(w *world, p *part) map[string][]netip.Prefix {
	out := map[string][]netip.Prefix{}
	for _, b := range w.blocksOf(p.Network.Name) {
		if !possible(&p.Network, b.Prefix) {
			continue // nobody claims so, and one that is wider would take others' addresses
		}
		if !slices.ContainsFunc(p.Blocks, b.Prefix.Overlaps) {
			out[b.Node] = append(out[b.Node], b.Prefix)
		}
	}
	return out
}

// peerOf is another host's part of a network.
func peerOf(p *part, n *store.Node, blocks []netip.Prefix) mesh.Peer {
	vtep, _ := net.ParseMAC(n.VTEP) // without one it follows from the id
	return mesh.Peer{
		ID: n.ID, Name: n.Name, Underlay: n.Underlay, VTEP: vtep, Port: n.Port,
		Blocks: blocks, Transport: mesh.Transport(p.Network.Transport),
	}
}

// stale are Docker networks whose copy of the configuration has another block
// than this host.
func (a *Agent) stale(parts []part) map[string]error {
	out := map[string]error{}
	_, copies := a.here()
	for _, c := range copies {
		i := slices.IndexFunc(parts, func(p part) bool { return p.Network.Name == c.Network })
		if i < 0 || len(parts[i].have) == 0 {
			continue
		}
		for _, r := range c.Ranges {
			if !slices.Contains(parts[i].have, r) {
				out[c.ID[:min(len(c.ID), shortID)]] = fmt.Errorf("it gives out %s, which is not this host's block of %s: remove it and create it again", r, c.Network)
			}
		}
	}
	return out
}
