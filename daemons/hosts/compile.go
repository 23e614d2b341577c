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

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/internal/mesh"
)

// thisHost holds what compile must know about this host in addition to the world. So compile
// reads neither the kernel nor the disk.
type thisHost struct {
	self   store.Node // this host's record with its underlay addresses
	uplink int        // MTU towards the other hosts, in bytes; 0 while there is no uplink
	dns    []string   // networks whose containers use our resolver; "*" means all
	plain  bool       // this host cannot encrypt

	hinders func(network *store.Network) error            // returns an error if an address or route of this host conflicts with a network, or if it could not be read (errUnread)
	runs    func(network string, block netip.Prefix) bool // reports whether containers of this host may have addresses of a block
}

// desired is the state that this host should have. Each function that applies a part of it
// compares that part with the actual state, and changes only what differs. A removal decides what
// may be removed.
type desired struct {
	stopped map[string]int // Agent.stopped before the world was read

	parts []part              // the networks in which this host takes part, with their bridges
	wrong map[string]error    // why this host takes no part in the other networks
	confs map[string]rendered // CNI configurations, by network
	self  mesh.Self
	peers []mesh.Peer
	names map[netip.Addr]string // the addresses at which the resolver listens, with their networks
}

type rendered struct {
	text []byte
	err  error
}

// compile computes the desired state of this host from the world and the facts.
func compile(w *world, f *thisHost) *desired {
	networks, wrong := usable(w, f)
	d := &desired{wrong: wrong, confs: map[string]rendered{}}
	for i := range networks {
		p := partOf(w, f, &networks[i])
		p.ready = p.ready && wrong[p.Network.Name] == nil // otherwise new containers would get addresses of only some subnets
		d.parts = append(d.parts, p)
		if p.ready {
			d.render(&p)
		}
	}
	d.self, d.peers = meshOf(w, f, d.parts)
	d.names = listening(d.parts)
	return d
}

// render makes the configuration of a network.
func (d *desired) render(p *part) {
	text, err := render(&p.plan)
	d.confs[p.Network.Name] = rendered{text, err}
}

// keeps reports whether a network's configuration stays, or is about to be written again.
func (d *desired) keeps(network string) bool {
	return d.wrong[network] == nil && slices.ContainsFunc(d.parts, func(p part) bool { return p.Network.Name == network && (p.complete() || p.soon) })
}

// participates reports whether this host takes part in a network.
func (d *desired) participates(network string) bool {
	return slices.ContainsFunc(d.parts, func(p part) bool { return p.Network.Name == network })
}

// part describes one network in which this host takes part.
type part struct {
	plan
	holding
	ready bool // the network's configuration can be written
	soon  bool // keep the network's configuration: the agent will claim its blocks again in a moment
}

// partOf returns this host's part of a network.
func partOf(w *world, f *thisHost, n *store.Network) part {
	h := holdingOf(n, f.self.ID, w.blocksOf(n.Name), w.Own[n.Name])
	p := part{plan: plan{Network: *n, Blocks: h.have, DNS: slices.Contains(f.dns, "*") || slices.Contains(f.dns, n.Name)}, holding: h, ready: h.complete() && f.uplink > 0}
	p.soon = len(h.lost) == 0 && len(h.missing) > 0 && remembered(n, h.missing, w.Own[n.Name])
	if len(h.lost) > 0 || p.soon {
		p.Blocks = w.Own[n.Name] // containers use these blocks as long as `used` counts an address
	}
	p.MTU = n.MTU
	if p.MTU == 0 {
		p.MTU = mesh.ContainerMTU(f.uplink, mesh.Transport(n.Transport), f.self.Underlay, n.Subnets)
	}
	return p
}

// remembered reports whether this node had a block of each subnet.
func remembered(n *store.Network, subnets, own []netip.Prefix) bool {
	return !slices.ContainsFunc(subnets, func(s netip.Prefix) bool {
		return !slices.ContainsFunc(own, func(b netip.Prefix) bool { return fits(n, s, b) })
	})
}

// usable returns the networks in which a host can take part. For each other network it returns the
// reason why not. If two networks overlap, the host takes part in the network in which it holds a
// block. Both loops of the agent call usable first, and leave the refused networks alone. If
// containers still have addresses of a refused network, the network is in both results. In the
// first one it has only the subnets of these addresses.
func usable(w *world, f *thisHost) (out []store.Network, wrong map[string]error) {
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

// refuses returns the reason why a host cannot take part in a network, or nil. others lists the
// networks in which the host already takes part.
func (f *thisHost) refuses(n *store.Network, others []store.Network) error {
	if err := errors.Join(Check(n), apart(n, others), outside(n, f.self.Underlay)); err != nil {
		return err
	}
	return f.hinders(n)
}

// running returns those subnets of a refused network in which containers of this host have
// addresses. That can happen if the network was created again with another subnet, for which it
// is refused.
func (f *thisHost) running(w *world, n *store.Network) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(n.Subnets), func(s netip.Prefix) bool {
		return !slices.ContainsFunc(w.Own[n.Name], func(b netip.Prefix) bool { return fits(n, s, b) && f.runs(n.Name, b) })
	})
}

// apart returns an error if a network overlaps another one.
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

// outside returns an error if a network contains an underlay address of the host.
func outside(n *store.Network, underlay []netip.Addr) error {
	for _, addr := range underlay {
		if i := slices.IndexFunc(n.Subnets, func(s netip.Prefix) bool { return s.Contains(addr) }); i >= 0 {
			return fmt.Errorf("subnet %s contains this host's own address %s", n.Subnets[i], addr)
		}
	}
	return nil
}

// meshOf returns this host and the other hosts, with their blocks. A host without a session is
// among them, because it may have lost only its connection to the store.
func meshOf(w *world, f *thisHost, parts []part) (mesh.Self, []mesh.Peer) {
	self := f.self
	out := mesh.Self{ID: self.ID, Underlay: self.Underlay, Port: self.Port, WirePort: self.WireGuardPort}
	var peers []mesh.Peer
	for _, p := range parts {
		for _, s := range p.Network.Subnets {
			out.Subnets = append(out.Subnets, p.subnet(s))
		}
		out.Blocks = append(out.Blocks, p.Blocks...)
		if f.plain && encrypts(&p.Network) {
			continue // no host is reached, and the fabric sends nothing unencrypted
		}
		blocks := blocksOfPeers(w, &p)
		for _, n := range w.Nodes {
			if len(blocks[n.ID]) > 0 && n.ID != self.ID {
				peers = append(peers, peerOf(&p, &n, blocks[n.ID]))
			}
		}
	}
	return out, peers
}

// subnet returns a range of the network, for the mesh.
func (p *part) subnet(s netip.Prefix) mesh.Subnet {
	n := &p.Network
	return mesh.Subnet{
		Network: n.Name, Prefix: s, Isolated: n.Isolate, Block: bitsOf(n, s), Bridge: bridgeName(n.Name), Encrypted: encrypts(n), Closed: encrypts(n),
	}
}

// blocksOfPeers returns the blocks of a network that other hosts hold, by node. It leaves out
// former blocks of this host whose addresses are still in use here.
func blocksOfPeers(w *world, p *part) map[string][]netip.Prefix {
	out := map[string][]netip.Prefix{}
	for _, b := range w.blocksOf(p.Network.Name) {
		if !possible(&p.Network, b.Prefix) {
			continue // no host claims such a block, and a wider one would take other hosts' addresses
		}
		if !slices.ContainsFunc(p.Blocks, b.Prefix.Overlaps) {
			out[b.Node] = append(out[b.Node], b.Prefix)
		}
	}
	return out
}

// peerOf returns another host's part of a network, for the mesh.
func peerOf(p *part, n *store.Node, blocks []netip.Prefix) mesh.Peer {
	vtep, _ := net.ParseMAC(n.VTEP)         // if it is invalid, the mesh derives a MAC from the id
	key, _ := mesh.ParseKey(n.WireGuardKey) // if it is invalid, there is none
	return mesh.Peer{
		ID: n.ID, Name: n.Name, Underlay: n.Underlay, VTEP: vtep, Port: n.Port, Key: key, WirePort: n.WireGuardPort,
		Blocks: blocks, Transport: mesh.Transport(p.Network.Transport),
	}
}

// listening returns the addresses at which the resolver listens, with their networks.
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
