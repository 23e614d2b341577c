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

	"github.com/patchbay-net/patchbay/internal/flock"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/once"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/statedir"
)

// Options say where a Mesh works.
type Options struct {
	Paths paths.Paths

	// Wanted is a path of the agent's that stands as long as it is installed, such
	// as its state directory: when it is gone, `patchbay gc` may remove the mesh.
	// "" lets the mesh's record alone decide.
	Wanted string

	// Warn hears of what is survived: a sysctl that may not be written, rules of
	// iptables-legacy that drop what nothing in nftables can accept. May be nil.
	Warn func(error)
}

// Mesh works on the namespace of the thread that calls Open; so must all other
// calls. One call at a time.
type Mesh struct {
	opts Options
	conn *nl.Conn

	legacy once.Failure // of iptables-legacy's rules

	// For Watch: what to listen for.
	mu      sync.Mutex
	depends map[string]int      // links that the last State goes by: their indexes
	uplinks []int               // links with the underlay addresses
	blocks  []netip.Prefix      // Self's
	known   map[netip.Addr]bool // addresses that were there
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

// Close closes the socket. Whatever was made stays.
func (m *Mesh) Close() { m.conn.Close() }

// Apply is Look, Compile and Sync: all of an agent's turn. The error tells what
// was left out or failed; everything else is done.
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

// Sync makes the kernel so, by difference. It goes on where one thing fails and
// returns all errors, joined. New ways are made before old ones go.
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
		return err // nobody knows what may go
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

// mark is what everything of this mesh carries.
func (s State) mark() mark { return mark{s.Protocol, s.Name} }

// Clear removes everything of the mesh called name ("": the default), as its
// record tells: routes, devices, facts, the record. It is for when the agent is
// uninstalled. One that was never there is no error.
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
		rec = &note{Protocol: DefaultProtocol, Name: name} // what carries the default's mark
	}
	return m.clear(ctx, rec.mark())
}

// clear takes the record away last, so that one that is killed is done again.
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
		return nil // another one's, of the same name
	}
	return dropRecord(m.opts.Paths, k.name)
}

// lock makes Sync, Clear and gc take turns.
func lock(ctx context.Context, p paths.Paths) (unlock func(), err error) {
	if err := statedir.Make(p.Run, recordDir); err != nil {
		return nil, fmt.Errorf("lock mesh: %w", err)
	}
	path := filepath.Join(p.Run, recordDir)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	unlock = func() { unix.Close(fd) } //nolint:errcheck // releases the lock
	if err := flock.Exclusive(ctx, fd); err != nil {
		unlock()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return unlock, nil
}
