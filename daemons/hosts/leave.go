// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/ipam"
)

// Leaving removes from a host what the agent made there. The agent must not be running.
type Leaving struct {
	Store   store.Store
	Paths   paths.Paths                 // the same as the agent's
	ConfDir string                      // the same as the agent's
	Force   bool                        // leave even if addresses of this host's blocks are in use
	Clear   func(context.Context) error // removes what the fabric made
	Log     func(format string, args ...any)

	dir   string
	links opener
}

// Do takes this host out of all networks. Afterwards other hosts may assign the addresses of this
// host's blocks. So Do refuses if containers have such addresses, or if Docker networks assign
// them. If the store is unreachable or a step fails, Do still does the other steps. In that case,
// or after a kill, it can be called again. On a host without an agent it changes nothing.
func (l Leaving) Do(ctx context.Context) error {
	l.dir = filepath.Join(l.Paths.State, Service)
	m := mirror{}
	if err := m.load(l.dir); err != nil && !l.Force {
		return err
	}
	theirs, away := l.inStore(ctx)
	own := maps.Clone(m.cache.Own)
	for _, b := range theirs.Blocks { // the cache may lack a block
		own = with(own, b)
	}
	copied, err := l.copied(own)
	if err == nil {
		err = l.withdraw(own)
	}
	if err != nil {
		return err
	}
	removed, err := removeConfs(l.ConfDir, func(string) bool { return false })
	for _, network := range removed {
		l.Log("network %s: configuration removed", network)
	}
	if err := errors.Join(err, away, l.giveBack(ctx, theirs), l.Clear(ctx), l.dropBridges(&m.cache)); err != nil {
		return err
	}
	return errors.Join(l.lift(copied), l.forget())
}

// with returns own with a block added.
func with(own map[string][]netip.Prefix, b store.Block) map[string][]netip.Prefix {
	if own == nil {
		own = map[string][]netip.Prefix{}
	}
	if !slices.Contains(own[b.Network], b.Prefix) {
		own[b.Network] = append(slices.Clip(own[b.Network]), b.Prefix)
	}
	return own
}

// copied returns the networks of which Docker networks have copies. Without Force it refuses Docker
// networks that give out addresses of the blocks, given by network.
func (l *Leaving) copied(own map[string][]netip.Prefix) (copied []string, err error) {
	d := docker{state: l.Paths.State}
	_, err = d.readState()
	errs := []error{err}
	for _, n := range d.networks {
		c, err := copyOf(n)
		if err == nil && slices.ContainsFunc(c.Ranges, func(r netip.Prefix) bool { return slices.ContainsFunc(own[c.Network], r.Overlaps) }) {
			err = fmt.Errorf("Docker network %.12s gives out addresses of %s: `docker network rm` it first", c.ID, c.Network)
		}
		copied, errs = append(copied, c.Network), append(errs, err)
	}
	if l.Force {
		return copied, nil
	}
	return copied, errors.Join(errs...)
}

// withdraw stops this host from giving out addresses of its blocks, given by network. If containers
// have such addresses, it refuses without Force, and the host goes on giving them out.
func (l *Leaving) withdraw(own map[string][]netip.Prefix) error {
	var errs []error
	before := map[string]*ipam.Granted{}
	for network, blocks := range own {
		if foreign(l.ConfDir, network) {
			continue
		}
		used, err := grants{l.Paths.CNI}.change(network, func(now *ipam.Granted) *ipam.Granted {
			before[network] = now
			return &ipam.Granted{Why: fmt.Sprintf("this host has left network %s", network)}
		}, blocks)
		if err == nil && used > 0 {
			err = fmt.Errorf("network %s: %d addresses of %s are in use here: remove those containers first", network, used, join(blocks))
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil && !l.Force {
		return errors.Join(err, l.restore(before))
	}
	return nil
}

// restore gives networks their former grants back.
func (l *Leaving) restore(before map[string]*ipam.Granted) error {
	var errs []error
	for network, was := range before {
		_, err := grants{l.Paths.CNI}.change(network, func(*ipam.Granted) *ipam.Granted { return was }, nil)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// lift removes the grants. Grants of Docker networks that still exist stay: without its grant, a
// network would give out addresses of a block that another host may have.
func (l *Leaving) lift(copied []string) error {
	granted, err := ipam.Grants(l.Paths.Pools())
	errs := []error{err}
	for _, network := range granted {
		if !slices.Contains(copied, network) {
			_, err := grants{l.Paths.CNI}.change(network, unlimited, nil)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// inStore returns what the store has about this host.
func (l *Leaving) inStore(ctx context.Context) (w world, err error) {
	self, err := readIdentity(l.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return w, nil
	}
	if err != nil {
		return w, err
	}
	if w, err = (Admin{l.Store}).read(ctx); err != nil {
		err = fmt.Errorf("give back blocks: %w", err)
	}
	w.Blocks = slices.DeleteFunc(w.Blocks, func(b store.Block) bool { return b.Node != self })
	w.Endpoints = slices.DeleteFunc(w.Endpoints, func(e store.Entry) bool { return e.Node != self })
	w.Nodes = slices.DeleteFunc(w.Nodes, func(n store.Node) bool { return n.ID != self })
	return w, err
}

// giveBack removes what the store has about this host: first its blocks, then the endpoints on
// its last session, then its node.
func (l *Leaving) giveBack(ctx context.Context, theirs world) error {
	var errs []error
	for _, b := range theirs.Blocks {
		deleted, err := deleteWhile(ctx, l.Store.Blocks(), b.Key(), func(now store.Block) bool { return now.Node == b.Node })
		if errs = append(errs, err); deleted {
			l.Log("network %s: gave back block %s", b.Network, b.Prefix)
		}
	}
	for _, e := range theirs.Endpoints {
		errs = append(errs, deleteAsRead(ctx, l.Store.Entries(), e))
	}
	for _, n := range theirs.Nodes {
		errs = append(errs, deleteAsRead(ctx, l.Store.Nodes(), n))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("give back blocks: %w", err)
	}
	return nil
}

// dropBridges removes the bridges that nothing uses.
func (l *Leaving) dropBridges(w *world) error {
	b, err := openBridges(l.links, l.Paths, w, l.Log)
	if err != nil {
		return err
	}
	defer b.close()
	var errs []error
	for _, network := range w.Bridges {
		removed, err := b.drop(network)
		if errs = append(errs, err); !removed && err == nil {
			l.Log("network %s: %s stays: it is in use", network, bridgeName(network))
		}
	}
	return errors.Join(errs...)
}

// forget removes the agent's files, the identity last. If a store is in the same directory,
// forget keeps it.
func (l *Leaving) forget() error {
	if err := os.RemoveAll(KeyDir(l.Paths)); err != nil {
		return err
	}
	for _, name := range []string{cacheFile, statusFile, identityFile} {
		if err := durable.Remove(filepath.Join(l.dir, name)); err != nil {
			return err
		}
	}
	return nil
}
