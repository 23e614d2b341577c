// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package mesh connects the containers of several hosts. It makes routes to hosts on the same
// link. For the other hosts it makes a VXLAN device, or a WireGuard device for all hosts. It also
// makes firewall rules for the whole network. The caller provides the list of hosts.
//
// Observe reads the kernel's routes to the peers. Compile computes a State from the host, its
// peers and these routes; it changes nothing. Sync compares the State with the kernel and
// changes only what differs. So a second Sync writes nothing. Connections survive every Sync, a
// restart of the agent and an upgrade. Sync also removes our objects that the State no longer
// contains.
//
// # What is ours
//
// Our routes have our own protocol number, and our devices have an ifalias. Facts of the
// firewall have a holder named after the mesh. A record in /run/patchbay shows that the mesh is
// wanted (docs/ownership.md). The mesh never changes objects of other programs. If another
// program has a route for a peer's block, the error names that route. Watch reports when such
// a route appears or goes.
//
// # The tunnel
//
// The device does not learn addresses. For each peer, its forwarding database has one entry
// from the peer's Ethernet address to the peer's underlay address. The device also has one
// permanent neighbour for each peer: a link-local IPv6 address derived from the Ethernet
// address. This address is the next hop for IPv4 and IPv6 blocks (an IPv6 next hop for IPv4
// needs Linux 5.2). So the device sends no neighbour solicitations. It has the
// address that is derived from its own Ethernet address, and answers the tests of other hosts
// there (docs/adr/0049). If the kernel was booted without IPv6, the next hop of a block is the
// block's network address.
//
// One device serves one family of underlay addresses, because the kernel opens one socket for
// it. Two peers use IPv4 if both have it, and IPv6 otherwise. If some peers need IPv4 and
// others IPv6, there is a second device whose name ends in 6.
//
// A device takes packets from any sender. So the mesh also makes rules that let only peers send into the
// tunnel, and each of them only from its own addresses (guard.go, docs/adr/0069).
//
// # WireGuard
//
// One WireGuard device encrypts the packets to all peers with this transport, over IPv4 and
// IPv6. If a peer has no key, the mesh makes no route to it. The mesh also makes an unreachable
// route for the whole network of encrypted peers. Without this route, packets would take the
// default route when a peer has no key or the device is missing. The device has the first
// address of each block of this host, which no container gets. Programs on the host and
// masquerading use this address as source. Unencrypted packets that arrive with a source in the
// network are dropped (internal/nft/plain.go), and in a closed network those that arrive for it, too.
// Networks with and without encryption work side by side.
//
// # Path MTU
//
// Probe finds how many bytes the path to each peer carries, and Sync gives the routes to that
// peer an MTU if it is less than the link's (docs/adr/0045).
//
// # Offloads
//
// The outer UDP checksum is on, for IPv4 too. The checksum costs almost nothing, because the
// inner checksum is known. A receiving network card without VXLAN support can still check it.
// Kernels before 5.7 sent wrong checksums if outer packets were marked or translated. The mesh
// does neither, and the underlay must lie outside the networks, so that masquerading does not
// translate outer packets either. Some cards mistake a tunnel for another kind of tunnel
// because of its port (vmxnet3 with 8472, or with 4789 if NSX is used). For such cards set
// another Self.Port.
package mesh

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/flock"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// Options configure a Mesh.
type Options struct {
	Paths paths.Paths

	// Wanted is a path that exists as long as the agent is installed, such as the agent's state
	// directory. If the path no longer exists, `patchbay gc` may remove the mesh. If Wanted is
	// "", only the mesh's record counts.
	Wanted string

	// Keys are this host's keys for WireGuard, from package wirekey. They may be nil if no peer
	// has that transport.
	Keys *Keys

	// MakeKeys returns the keys, for Encrypt. It may be nil.
	MakeKeys func(context.Context) (*Keys, error)

	// Warn receives errors that stop nothing. Examples are a read-only sysctl, and rules of
	// iptables-legacy that drop packets and that no nftables rule can override. Probe calls Warn
	// too. Warn may be nil.
	Warn func(error)

	// Detour receives why peers on the same link are reached through the tunnel, or nil if none is.
	// Detour may be nil.
	Detour func(error)
}

// Mesh works in the namespace of the thread that called Open. All other calls must run in the
// same namespace, one at a time.
type Mesh struct {
	opts Options
	conn *nl.Conn

	legacy resident.Failure // rules of iptables-legacy that drop packets
	spare  resident.Failure // of a device that no route uses
	paths  found            // what Probe has found
	waits  waits            // of Probe

	// The following fields tell Watch what to watch. mu protects them.
	mu        sync.Mutex
	depends   map[string]int      // links that the last State uses, with their indexes
	uplinks   []int               // links with underlay addresses
	blocks    []netip.Prefix      // blocks of Self
	hostAddrs map[netip.Addr]bool // the host's addresses at the last Observe
	wanted    routed              // blocks to which the last State has routes
	refused   []netip.Prefix      // ranges that it refuses
	blocked   []int               // indexes of the links whose routes are in the way
}

// Open opens a socket. Open changes nothing.
func Open(o Options) (*Mesh, error) {
	conn, err := nl.Host(o.Paths.Proc)
	if err != nil {
		return nil, err
	}
	if o.Warn == nil {
		o.Warn = func(error) {}
	}
	if o.Detour == nil {
		o.Detour = func(error) {}
	}
	return &Mesh{opts: o, conn: conn, paths: found{again: make(chan bool, 1)}, waits: usual}, nil
}

// Close closes the socket. All objects in the kernel remain.
func (m *Mesh) Close() { m.conn.Close() }

// Apply calls Observe, Compile and Sync. The error joins what Compile left out and what failed.
// Apply does everything else.
func (m *Mesh) Apply(ctx context.Context, self Self, peers []Peer) error {
	facts, err := m.Observe(self, peers)
	if err != nil {
		return err
	}
	s, err := Compile(self, peers, facts)
	if errors.Is(err, ErrSelf) {
		return err
	}
	m.opts.Detour(s.detour())
	return errors.Join(err, m.Sync(ctx, s))
}

// Sync changes the kernel where it differs from the state. If a step fails, Sync continues and
// joins the errors. It adds new routes before it removes old ones.
func (m *Mesh) Sync(ctx context.Context, s State) error {
	unlock, err := lock(ctx, m.opts.Paths)
	if err != nil {
		return err
	}
	defer unlock()
	if err := m.note(ctx, s); err != nil {
		return err
	}
	fw, store := nft.Open(m.opts.Paths.Run), record.New(m.opts.Paths.Run)
	defer store.Close()
	defer fw.Close() //nolint:errcheck // committed
	env := &netstate.Env{Host: m.conn, NFT: fw, Warn: m.opts.Warn}
	h := holder{s.mark(), store}
	m.warnLegacy(s.Subnets)
	facts := s.facts()
	errs := []error{s.forwarding(ctx, env), h.hold(ctx, env, facts), s.guard(ctx, fw)}
	var links []placed
	for _, d := range s.Devices {
		p, err := m.place(s, d)
		if err == nil {
			links = append(links, p)
			err = m.tunnels(p)
		}
		errs = append(errs, m.unlessSpare(d, err))
	}
	wire, err := m.wire(s)
	errs = append(errs, err, m.routes(s), wire.prune())
	for _, p := range links {
		errs = append(errs, m.prune(p))
	}
	errs = append(errs, m.withoutDevices(ctx, s, fw), h.drop(ctx, env, facts))
	m.remember(s)
	return errors.Join(errs...)
}

// unlessSpare returns an error about a device. If no route uses the device, it only warns: a kernel without
// VXLAN can have direct routes.
func (m *Mesh) unlessSpare(d Device, err error) error {
	if !d.Spare {
		return err
	}
	if m.spare.Changed(err) && err != nil {
		m.opts.Warn(fmt.Errorf("direct routes are not tested: %w", err))
	}
	return nil
}

// devices returns the names of the links in the state.
func (s State) devices() (names []string) {
	for _, d := range s.Devices {
		names = append(names, d.Name)
	}
	if s.Wire != nil {
		names = append(names, s.Wire.Name)
	}
	return names
}

// mark returns the mark of this mesh, which all its objects have.
func (s State) mark() mark { return mark{s.Protocol, s.Name} }

// Clear removes everything of the mesh that self names: routes, devices, facts and the record.
// Clear is called when the agent is removed. The record has the protocol number of the routes. If
// there is no record, self has that number. A mesh that never existed is no error, and no other
// mesh loses its routes.
func (m *Mesh) Clear(ctx context.Context, self Self) error {
	self = self.withDefaults()
	unlock, err := lock(ctx, m.opts.Paths)
	if err != nil {
		return err
	}
	defer unlock()
	rec, err := readRecord(m.opts.Paths, self.Name)
	if err != nil || rec == nil {
		rec = &note{Protocol: self.Protocol, Name: self.Name}
	}
	return m.clear(ctx, rec.mark())
}

// clear removes the record last. So a clear that was killed can be repeated.
func (m *Mesh) clear(ctx context.Context, k mark) error {
	fw, store := nft.Open(m.opts.Paths.Run), record.New(m.opts.Paths.Run)
	defer store.Close()
	defer fw.Close() //nolint:errcheck // committed
	fw.Queue(nft.GuardPlain(nft.Plain{Mesh: k.name}))
	fw.Queue(nft.GuardLinks(nft.Links{Mesh: k.name}))
	err := errors.Join(
		fw.Commit(ctx),
		m.dropRoutes(k.protocol),
		m.withoutDevices(ctx, State{Protocol: k.protocol, Name: k.name}, fw),
		holder{k, store}.drop(ctx, &netstate.Env{Host: m.conn, NFT: fw, Warn: m.opts.Warn}, nil))
	if err != nil {
		return fmt.Errorf("clear mesh %s: %w", k.name, err)
	}
	if rec, err := readRecord(m.opts.Paths, k.name); err == nil && rec != nil && rec.mark() != k {
		return nil // the record of another mesh with the same name
	}
	return dropRecord(m.opts.Paths, k.name)
}

// lock makes Sync, Clear and gc run one after another.
func lock(ctx context.Context, p paths.Paths) (unlock func(), err error) {
	if err := durable.MakeDir(p.Run, recordDir); err != nil {
		return nil, fmt.Errorf("lock mesh: %w", err)
	}
	path := filepath.Join(p.Run, recordDir)
	fd, err := durable.LockAt(ctx, path, flock.Options{})
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { unix.Close(fd) }, nil //nolint:errcheck // releases the lock
}
