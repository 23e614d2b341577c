// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

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
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/resident"
	"github.com/patchbay-net/patchbay/paths"
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

	// Warn receives errors that stop nothing. Examples are a read-only sysctl, and rules of
	// iptables-legacy that drop packets and that no nftables rule can override. Probe
	// calls Warn, too. It may be nil.
	Warn func(error)
}

// Mesh works in the namespace of the thread that called Open. All other calls must run in the
// same namespace, one at a time.
type Mesh struct {
	opts Options
	conn *nl.Conn

	legacy resident.Failure // rules of iptables-legacy that drop packets
	paths  found            // by Probe

	// The following fields tell Watch what to watch. mu protects them.
	mu      sync.Mutex
	depends map[string]int      // links that the last State uses, with their indexes
	uplinks []int               // links with underlay addresses
	blocks  []netip.Prefix      // blocks of Self
	known   map[netip.Addr]bool // the host's addresses at the last Look
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
	return &Mesh{opts: o, conn: conn, paths: found{again: make(chan bool, 1)}}, nil
}

// Close closes the socket. All objects in the kernel remain.
func (m *Mesh) Close() { m.conn.Close() }

// Apply calls Look, Compile and Sync. The error joins what Compile left out and what failed;
// everything else is done.
func (m *Mesh) Apply(ctx context.Context, self Self, peers []Peer) error {
	facts, err := m.Look(self, peers)
	if err != nil {
		return err
	}
	s, err := Compile(self, peers, facts)
	if errors.Is(err, ErrSelf) {
		return err
	}
	return errors.Join(err, m.Sync(ctx, s))
}

// Sync changes the kernel where it differs from the state. Sync continues after an error and
// joins all errors. Sync adds new routes before it removes old ones.
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
	subnets, err := h.keep(s.Subnets)
	if err != nil {
		return err // not known what may be removed
	}
	facts := s.facts(subnets)
	errs := []error{s.forwarding(ctx, env), h.take(ctx, env, facts)}
	var links []placed
	for _, d := range s.Devices {
		p, err := m.place(s, d)
		if err == nil {
			links = append(links, p)
			err = m.tunnels(p)
		}
		errs = append(errs, err)
	}
	wire, err := m.wire(s)
	errs = append(errs, err, m.routes(s), wire.prune())
	for _, p := range links {
		errs = append(errs, m.prune(p))
	}
	errs = append(errs, m.dropDevices(s.mark(), s.devices()), h.drop(ctx, env, facts))
	m.remember(s)
	return errors.Join(errs...)
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
// Clear is called when the agent is removed. The record has the protocol number of the routes.
// Without a record self has it: a mesh that never existed is no error, and no other mesh loses
// its routes.
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

// clear removes the record last, so that a killed clear can be repeated.
func (m *Mesh) clear(ctx context.Context, k mark) error {
	fw, store := nft.Open(m.opts.Paths.Run), record.New(m.opts.Paths.Run)
	defer store.Close()
	defer fw.Close() //nolint:errcheck // committed
	err := errors.Join(
		m.dropRoutes(k.protocol),
		m.dropDevices(k, nil),
		holder{k, store}.drop(ctx, &netstate.Env{Host: m.conn, NFT: fw, Warn: m.opts.Warn}, nil))
	if err != nil {
		return fmt.Errorf("clear mesh %s: %w", k.name, err)
	}
	if rec, err := readRecord(m.opts.Paths, k.name); err == nil && rec != nil && rec.mark() != k {
		return nil // the record of another mesh with the same name
	}
	return dropRecord(m.opts.Paths, k.name)
}

// lock lets only one of Sync, Clear and gc run at a time.
func lock(ctx context.Context, p paths.Paths) (unlock func(), err error) {
	if err := durable.MakeDir(p.Run, recordDir); err != nil {
		return nil, fmt.Errorf("lock mesh: %w", err)
	}
	path := filepath.Join(p.Run, recordDir)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	unlock = func() { unix.Close(fd) } //nolint:errcheck // releases the lock
	if err := durable.LockExclusive(ctx, fd); err != nil {
		unlock()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return unlock, nil
}
