// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/store"
)

// facts are what this host's part in the world follows from, beside the world: compile
// asks neither the kernel nor the disk.
type facts struct {
	self   store.Node   // as others reach it
	uplink int          // MTU of the way to them, in bytes; 0 while there is none
	dns    []string     // networks whose containers get our resolver; "*" is all
	copies []dockerCopy // Docker's networks
	unread bool         // there may be more of them

	settled func(network string) bool                     // see function settled
	hinders func(network *store.Network) error            // says which address or route of this host is in a network's way, or errUnread
	runs    func(network string, block netip.Prefix) bool // whether containers here may have addresses of a block
}

// desired is what this host is to be. Appliers make it so by difference; what may be
// taken away for it, removal says.
type desired struct {
	parts []part              // with the bridges and their addresses
	wrong map[string]error    // why this host takes no part in the other networks
	confs map[string]rendered // CNI configurations, by network
	self  mesh.Self
	peers []mesh.Peer
	names map[netip.Addr]string // where names are answered, with their networks
}

type rendered struct {
	text []byte
	err  error
}

// compile makes of a whole world, and the facts of this host, what the host is to be.
func compile(w *world, f *facts) *desired {
	networks, wrong := usable(w, f)
	d := &desired{wrong: wrong, confs: map[string]rendered{}}
	for i := range networks {
		p := partOf(w, f, &networks[i])
		p.ready = p.ready && wrong[p.Network.Name] == nil // else no new container gets half of its addresses
		d.parts = append(d.parts, p)
		if p.ready {
			text, err := render(&p.plan)
			d.confs[p.Network.Name] = rendered{text, err}
		}
	}
	d.self, d.peers = meshOf(w, f.self, d.parts)
	d.names = listening(d.parts)
	return d
}

// keeps says whether a network has its configuration, or is about to have it again.
func (d *desired) keeps(network string) bool {
	return d.wrong[network] == nil && slices.ContainsFunc(d.parts, func(p part) bool { return p.Network.Name == network && (p.complete() || p.soon) })
}

// takesPart says whether this host takes part in a network.
func (d *desired) takesPart(network string) bool {
	return slices.ContainsFunc(d.parts, func(p part) bool { return p.Network.Name == network })
}

// part is one network as this host takes part in it.
type part struct {
	plan
	holding
	ready bool // it can be configured
	soon  bool // it stays as it was: its blocks are about to be claimed again

	masquerade, unsettled bool // see mesh.Subnet
}

// partOf is this host's part of a network.
func partOf(w *world, f *facts, n *store.Network) part {
	h := holdingOf(n, f.self.ID, w.blocksOf(n.Name), w.Own[n.Name])
	p := part{plan: plan{Network: *n, Blocks: h.have, DNS: f.answers(n.Name)}, holding: h, ready: h.complete() && f.uplink > 0}
	p.soon = len(h.lost) == 0 && len(h.missing) > 0 && remembered(n, h.missing, w.Own[n.Name])
	if len(h.lost) > 0 || p.soon {
		p.Blocks = w.Own[n.Name] // they are in use here until `used` says otherwise
	}
	p.MTU = n.MTU
	if p.MTU == 0 {
		p.MTU = mesh.ContainerMTU(f.uplink, mesh.Transport(n.Transport), f.self.Underlay)
	}
	p.masquerade, p.unsettled = f.bare(n.Name), f.unread || !f.settled(n.Name)
	return p
}

// remembered says whether this node had a block of each subnet.
func remembered(n *store.Network, subnets, own []netip.Prefix) bool {
	return !slices.ContainsFunc(subnets, func(s netip.Prefix) bool {
		return !slices.ContainsFunc(own, func(b netip.Prefix) bool { return fits(n, s, b) })
	})
}

// answers says whether our resolver is for a network's containers.
func (f *facts) answers(network string) bool {
	return slices.Contains(f.dns, "*") || slices.Contains(f.dns, network)
}

// usable are the networks that a host can take part in, and why not in the
// others. Of two that overlap it is the one that the host has a block of already.
// Nothing is done for the others: both loops ask here, before everything. Only what
// containers here have of one goes on, and the network is among both.
func usable(w *world, f *facts) (out []store.Network, wrong map[string]error) {
	wrong = map[string]error{}
	all := slices.Clone(w.Networks)
	slices.SortStableFunc(all, func(a, b store.Network) int { return cmp.Compare(len(w.Own[b.Name]), len(w.Own[a.Name])) })
	for i := range all {
		n := all[i]
		err := f.refuses(&n, out)
		if err != nil {
			wrong[n.Name] = err
			n.Subnets = f.running(w, &n)
		}
		if err == nil || len(n.Subnets) > 0 && !errors.Is(err, errUnread) && f.refuses(&n, out) == nil {
			out = append(out, n)
		}
	}
	return out, wrong
}

// refuses says why a host takes no part in a network beside others.
func (f *facts) refuses(n *store.Network, others []store.Network) error {
	if err := errors.Join(Check(n), apart(n, others), outside(n, f.self.Underlay)); err != nil {
		return err
	}
	return f.hinders(n)
}

// running are the subnets of a network in which containers here have addresses: it was
// created again, and is refused for another one.
func (f *facts) running(w *world, n *store.Network) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(n.Subnets), func(s netip.Prefix) bool {
		return !slices.ContainsFunc(w.Own[n.Name], func(b netip.Prefix) bool { return fits(n, s, b) && f.runs(n.Name, b) })
	})
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
			continue // no host claims such a block, and a wider one would take others' addresses
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

// listening are the addresses where names are answered, with their networks.
func listening(parts []part) map[netip.Addr]string {
	out := map[netip.Addr]string{}
	for i := range parts {
		if parts[i].DNS && parts[i].complete() {
			for _, addr := range parts[i].gateways() {
				out[addr] = parts[i].Network.Name
			}
		}
	}
	return out
}
