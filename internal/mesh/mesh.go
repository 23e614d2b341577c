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

	// Wanted is a path of the agent that exists as long as the agent is installed, such as
	// its state directory: without it, `patchbay gc` may remove the mesh. With "" only the
	// mesh's record counts.
	Wanted string

	// Warn receives errors that stop nothing: a sysctl that is read-only, or rules of
	// iptables-legacy that drop what no rule in nftables can accept. It may be nil.
	Warn func(error)
}

// Mesh works in the namespace of the thread that calls Open. All other calls must run in
// that namespace, too, one at a time.
type Mesh struct {
	opts Options
	conn *nl.Conn

	legacy resident.Failure // of iptables-legacy's rules

	// For Watch: what to watch.
	mu      sync.Mutex
	depends map[string]int      // links that the last State uses, and their indexes
	uplinks []int               // links with the underlay addresses
	blocks  []netip.Prefix      // those of Self
	known   map[netip.Addr]bool // the host's addresses at the last Look
}

// Open opens a socket. It changes nothing.
func Open(o Options) (*Mesh, error) {
	conn, err := nl.Host(o.Paths.Proc)
	if err != nil {
		return nil, err
	}
	if o.Warn == nil {
		o.Warn = func(error) {}
	}
	return &Mesh{opts: o, conn: conn}, nil
}

// Close closes the socket. All objects in the kernel stay.
func (m *Mesh) Close() { m.conn.Close() }

// Apply calls Look, Compile and Sync. The error joins what was left out or failed; the rest
// is done.
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

// Sync brings the kernel into the state by changing what differs. After a failure it
// continues, and it returns all errors, joined. It adds new routes before it removes old
// ones.
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
		return err // it is unknown what may go
	}
	errs := []error{s.forwarding(ctx, env), h.take(ctx, env, subnets)}
	var links []placed
	for _, d := range s.Devices {
		p, err := m.place(s, d)
		if err == nil {
			links = append(links, p)
			err = m.tunnels(p)
		}
		errs = append(errs, err)
	}
	errs = append(errs, m.routes(s))
	for _, p := range links {
		errs = append(errs, m.prune(p))
	}
	errs = append(errs, m.dropDevices(s.mark(), s.Devices), h.drop(ctx, env, subnets))
	m.remember(s)
	return errors.Join(errs...)
}

// mark is carried by everything of this mesh.
func (s State) mark() mark { return mark{s.Protocol, s.Name} }

// Clear removes everything of a mesh ("": the default), as its record shows: routes,
// devices, facts, the record. It is for the removal of the agent. A mesh that never existed
// is no error.
func (m *Mesh) Clear(ctx context.Context, name string) error {
	if name == "" {
		name = DefaultName
	}
	unlock, err := lock(ctx, m.opts.Paths)
	if err != nil {
		return err
	}
	defer unlock()
	rec, err := readRecord(m.opts.Paths, name)
	if err != nil || rec == nil {
		rec = &note{Protocol: DefaultProtocol, Name: name} // with the mark of the default
	}
	return m.clear(ctx, rec.mark())
}

// clear removes the record last, so that a killed clear is repeated.
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
		return nil // the record of another mesh of the same name
	}
	return dropRecord(m.opts.Paths, k.name)
}

// lock makes Sync, Clear and gc take turns.
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
