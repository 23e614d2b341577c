// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/resident"
	"github.com/patchbay-net/patchbay/ipam"
)

// grants are the files by which host-local learns from which blocks it may give out addresses
// (docs/adr/0076). A configuration alone does not decide it: Docker networks have copies of
// configurations, and a runtime may have read one just before the agent removed it.
type grants struct{ cni string }

// lockTime limits how long the agent waits for host-local's lock. An ADD holds the lock for
// milliseconds.
const lockTime = 5 * time.Second

func (g grants) store(network string) *ipam.FileStore {
	return &ipam.FileStore{DataDir: paths.Paths{CNI: g.cni}.Pools(), Network: network}
}

// change replaces a network's grant, and counts the addresses of blocks that containers have. No
// ADD gives out an address in between.
func (g grants) change(network string, to func(*ipam.Granted) *ipam.Granted, blocks []netip.Prefix) (used int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), lockTime)
	defer cancel()
	if used, err = g.store(network).ChangeGrant(ctx, to, blocks); err != nil {
		err = fmt.Errorf("count addresses in use: %w", err)
	}
	return used, err
}

// used counts the addresses of blocks that containers of this host have. It counts the files of
// host-local, which all runtimes share. If it returns an error, the number is not known, and
// nothing may be removed.
func (g grants) used(network string, blocks []netip.Prefix) (n int, err error) {
	if n, err = g.store(network).Reserved(blocks); err != nil {
		err = fmt.Errorf("count addresses in use: %w", err)
	}
	return n, err
}

// only returns a change to a grant of these blocks.
func only(blocks []netip.Prefix, why string) func(*ipam.Granted) *ipam.Granted {
	return func(*ipam.Granted) *ipam.Granted { return &ipam.Granted{Blocks: blocks, Why: why} }
}

// files returns the host-local files of the agent's host.
func (a *Agent) files() grants { return grants{a.opts.Paths.CNI} }

// allow lets containers get addresses of this host's blocks. Every function that takes a block away
// holds a.granting, too. So the agent remembers each block of a grant, and notices the loss of a
// block that it remembers. before is the result of stops from before the world was read. If a block
// of the network was taken away since, allow does nothing, and the next pass decides.
func (a *Agent) allow(network string, blocks []netip.Prefix, before map[string]int) error {
	a.granting.Lock()
	defer a.granting.Unlock()
	if a.stopped[network] != before[network] {
		resident.Signal(a.local)
		return nil
	}
	a.mirror.remember(network, blocks) // before a container gets an address of the block
	if foreign(a.opts.ConfDir, network) {
		return nil // writeConf reports it
	}
	if now, err := a.files().store(network).Grant(); err == nil && now != nil && slices.Equal(now.Blocks, blocks) {
		return nil // without the lock of the addresses
	}
	_, err := a.files().change(network, only(blocks, fmt.Sprintf("this host's block of network %s is %s now", network, join(blocks))), nil)
	return err
}

// revoke stops this host from giving out addresses of a network, and counts those of its blocks
// that containers have. If there are none, it forgets those of its blocks for which lost returns
// true.
func (a *Agent) revoke(network, why string, own []netip.Prefix, lost func(netip.Prefix) bool) (used int, err error) {
	a.granting.Lock()
	defer a.granting.Unlock()
	if used, err = a.withdraw(network, why, own); err == nil && used == 0 {
		a.mirror.remember(network, slices.DeleteFunc(slices.Clone(own), lost))
	}
	return used, err
}

// stop stops this host from giving out addresses of a network.
func (a *Agent) stop(network, why string) error {
	a.granting.Lock()
	defer a.granting.Unlock()
	_, err := a.withdraw(network, why, nil)
	return err
}

// withdraw empties a network's grant. A configuration of another program may have the network's
// name. Then the grant goes, because it would limit that program's containers.
func (a *Agent) withdraw(network, why string, own []netip.Prefix) (used int, err error) {
	a.noteStop(network)
	if !foreign(a.opts.ConfDir, network) {
		return a.files().change(network, only(nil, why), own)
	}
	if now, err := a.files().store(network).Grant(); now == nil && err == nil {
		return a.files().used(network, own)
	}
	return a.files().change(network, unlimited, own)
}

// noteStop counts that this host stops giving out addresses of a network's blocks. The caller holds
// a.granting.
func (a *Agent) noteStop(network string) {
	if a.stopped == nil {
		a.stopped = map[string]int{}
	}
	a.stopped[network]++
}

// stops returns how often this host stopped, by network.
func (a *Agent) stops() map[string]int {
	a.granting.Lock()
	defer a.granting.Unlock()
	return maps.Clone(a.stopped)
}

// unlimited is the change that removes a grant.
func unlimited(*ipam.Granted) *ipam.Granted { return nil }

// spare stops this host from giving out addresses of a block that it is about to give back, and
// reports whether no container has an address of the block.
func (a *Agent) spare(network string, block netip.Prefix) (bool, error) {
	a.granting.Lock()
	defer a.granting.Unlock()
	a.noteStop(network)
	used, err := a.files().change(network, func(now *ipam.Granted) *ipam.Granted {
		if now == nil || foreign(a.opts.ConfDir, network) {
			return now
		}
		kept := slices.DeleteFunc(slices.Clone(now.Blocks), block.Overlaps)
		return &ipam.Granted{Blocks: kept, Why: now.Why}
	}, []netip.Prefix{block})
	return err == nil && used == 0, err
}

// withhold empties the grants of the networks from which this host has nothing to give out. It
// returns the reasons, by network.
func (a *Agent) withhold(w *world, d *desired, may *removal) (why map[string]string, err error) {
	why = map[string]string{}
	var errs []error
	for network := range a.limited(w) {
		if d.keeps(network) || !may.network(network) {
			continue
		}
		why[network] = d.whyNot(w, network)
		errs = append(errs, a.stop(network, why[network]), a.tidyGrant(w, network))
	}
	return why, errors.Join(errs...)
}

// limited returns the networks that may need a grant: those that have one, those of which this host
// has had blocks, and those of which a Docker network has a copy.
func (a *Agent) limited(w *world) map[string]bool {
	out := map[string]bool{}
	granted, _ := ipam.Grants(a.opts.Paths.Pools()) // each change reports an unreadable directory
	for _, network := range granted {
		out[network] = true
	}
	for network := range maps.Keys(w.Own) {
		out[network] = true
	}
	for network := range maps.Keys(w.Given) {
		out[network] = true
	}
	_, copies := a.here()
	for _, c := range copies {
		out[c.Network] = out[c.Network] || c.Ours
	}
	maps.DeleteFunc(out, func(_ string, is bool) bool { return !is })
	return out
}

// confRest is how long an ADD with the old configuration may still run after the file was
// replaced: a runtime keeps its copy for a moment, and the ADD takes time too.
const confRest = 10 * time.Minute

// tidyGrant removes the grant of a network that is gone, once nothing can ask for its addresses any
// more. After that, another network may have the name.
func (a *Agent) tidyGrant(w *world, network string) error {
	_, copies := a.here()
	copied := slices.ContainsFunc(copies, func(c dockerCopy) bool { return c.Network == network && c.Ours })
	if _, all := a.localContainers(); !all || copied || w.network(network).Name != "" {
		return nil
	}
	fi, err := os.Lstat(filepath.Join(a.opts.Paths.Pools(), network, ipam.GrantFile))
	if err != nil || time.Since(fi.ModTime()) < confRest {
		return nil //nolint:nilerr // there is none
	}
	a.granting.Lock()
	defer a.granting.Unlock()
	_, err = a.files().change(network, unlimited, nil)
	return err
}

func removed(network string) string {
	return fmt.Sprintf("network %s was removed from all hosts", network)
}

// whyNot returns why this host gives out no addresses of a network.
func (d *desired) whyNot(w *world, network string) string {
	if err := d.wrong[network]; err != nil {
		return fmt.Sprintf("this host takes no part in network %s: %v", network, err)
	}
	i := slices.IndexFunc(d.parts, func(p part) bool { return p.Network.Name == network })
	switch {
	case i < 0:
		return removed(network)
	case len(d.parts[i].lost) > 0:
		b := d.parts[i].lost[0]
		return lostTo(w, &b)
	}
	return fmt.Sprintf("this host has no block of network %s", network)
}
