// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft/iptnft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/order"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/ipam"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/kernel"
	"github.com/patchbay-net/patchbay/spec"
)

// remover removes one attachment.
type remover struct {
	*collector
	s      *plugin.Session
	k      *kernel.Kernel
	a      *Attachment
	detach func(context.Context, *chain.List, chain.Attachment) error // DEL; the caller holds the container's locks
}

// lockTime is how long gc waits for an operation of the runtime library.
const lockTime = 2 * time.Second

// remove takes the locks of the runtime library and the claim, which keeps ADDs out, and
// then removes the attachment. It keeps an attachment that is in use.
func (c *collector) remove(ctx context.Context, a *Attachment) error {
	s := c.NewSession()
	defer s.Close()
	r := &remover{collector: c, s: s, k: kernel.OfSession(s), a: a}
	if a.ContainerID == "" && len(a.torn) > 0 {
		return r.removeTorn(ctx)
	}
	if a.ContainerID == "" {
		return fmt.Errorf("%s has no name", a.Name()) // DEL needs one
	}
	rt := *c.Runtime
	rt.Invoker = r
	waiting, cancel := context.WithTimeout(ctx, lockTime)
	defer cancel()
	entered, err := rt.Alone(waiting, a.Network, a.ContainerID, func(detach func(context.Context, *chain.List, chain.Attachment) error) error {
		r.detach = detach
		return r.removeSeized(ctx)
	})
	if !entered && errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		a.State, a.Why = Unsure, record.InUse
		return nil
	}
	return err
}

// removeSeized judges again and removes everything: first by the records, then by the cached
// configuration, then what still exists. Every step runs even after one fails.
func (r *remover) removeSeized(ctx context.Context) error {
	done, err := r.k.Records.Collecting(ctx)
	if err != nil {
		return err
	}
	defer done()
	release, keep, err := r.k.Records.Seize(r.a.Network, r.a.Owner, r.recheck)
	if err != nil || keep != "" {
		return r.leave(keep, err)
	}
	defer release()
	free, keep, err := r.seizeDrivers()
	if err != nil || keep != "" {
		return r.leave(keep, err)
	}
	defer free()
	return r.removeAll(ctx)
}

func (r *remover) removeAll(ctx context.Context) error {
	err := r.delRecords(ctx)
	why, derr := r.delDrivers(ctx)
	if why != "" {
		return r.leave(why, err)
	}
	err = errors.Join(err, derr, r.delCached(ctx), r.delKernel(ctx), r.delAddresses(ctx), r.delFiles())
	r.a.Removed = err == nil
	return err
}

// leave notes why gc keeps the attachment.
func (r *remover) leave(keep string, err error) error {
	if keep != "" {
		r.a.State, r.a.Why = Unsure, keep
	}
	return err
}

// recheck judges the attachment once more, with its records locked and ADDs kept out, and
// returns the reason to keep it.
func (r *remover) recheck(list []record.Standing) (keep string) {
	known := append(r.plugins(), r.a.drivers...)
	for _, at := range list {
		if !slices.Contains(known, at.Plugin) {
			return record.InUse
		}
		if at.Record != nil {
			r.a.at(at.Record.NetNS, at.Record.NetNSMark)
		}
	}
	if r.a.pendingDriver != "" {
		return ""
	}
	if now, err := r.Runtime.Cached(r.a.Network, r.attachment()); r.a.cached != nil && err == nil && now != nil {
		r.a.at(now.NetNS, nil)
		r.a.seen(now.Since)
	}
	if state, reason := r.world.life(r.a); state != life.Dead && reason != "" && !r.world.earlier(r.a) {
		return reason
	}
	return ""
}

func (r *remover) attachment() chain.Attachment {
	return chain.Attachment{ContainerID: r.a.ContainerID, IfName: r.a.IfName}
}

// plugins names the plugins that have a record, in the order of a DEL: chained ones, then
// those that make interfaces, then those that assign addresses.
func (r *remover) plugins() (names []string) {
	for _, rec := range r.a.records {
		names = append(names, rec.Plugin)
	}
	for _, t := range r.a.torn {
		names = append(names, t.Plugin)
	}
	place := func(name string) int {
		for _, p := range r.s.Plugins {
			if p.Name == name {
				return [...]int{plugin.Chained: 0, plugin.Interface: 1, plugin.IPAM: 2}[p.Kind]
			}
		}
		return 0
	}
	order.Stable(names, func(x, y string) int { return cmp.Compare(place(x), place(y)) })
	return names
}

// delRecords calls the DEL of each plugin that has a record. The record holds all that DEL
// needs, so the configuration is only a name.
func (r *remover) delRecords(ctx context.Context) error {
	var errs []error
	for _, name := range r.plugins() {
		conf, err := json.Marshal(map[string]string{"cniVersion": spec.Current, "name": r.a.Network, "type": name})
		if err != nil {
			return err
		}
		call := &spec.Call{
			Verb: spec.Del, ContainerID: r.a.ContainerID, IfName: r.a.IfName, Config: conf,
			Path: r.path(name),
		}
		if _, err := r.Invoke(ctx, name, call); err != nil {
			errs = append(errs, fmt.Errorf("plugin %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// path is where to look for a plugin's program: nowhere for a plugin of this program. A
// separate program locks its record itself; the claim stays.
func (r *remover) path(name string) []string {
	if slices.ContainsFunc(r.s.Plugins, func(p *plugin.Plugin) bool { return p.Name == name }) {
		return []string{filepath.Join(r.Paths.Run, "no-plugins")}
	}
	r.k.Records.Unlock(r.a.Network, r.a.Owner, name)
	return r.Runtime.Path
}

// Invoke calls a plugin in the session that holds the locks, or another program, for
// DelTime at most: one that hangs must not keep gc from the rest of its work.
func (r *remover) Invoke(ctx context.Context, pluginType string, call *spec.Call) ([]byte, error) {
	out, err := invoke.Within(ctx, cmp.Or(r.DelTime, delTime), r.s.Invoker(), pluginType, call)
	return out, errors.Join(err, r.s.Flush(ctx))
}

// delCached detaches with the configuration of the ADD, which reaches other vendors'
// plugins. Without one it only deletes the cached result.
func (r *remover) delCached(ctx context.Context) error {
	if r.a.cached == nil {
		return nil
	}
	list, err := chain.ParseList(r.a.cached.Config)
	if err != nil || list.Name != r.a.Network {
		list = &chain.List{Name: r.a.Network, CNIVersion: spec.Current}
	}
	return r.detach(ctx, list, r.attachment())
}

// delKernel removes what no plugin's DEL has found: elements, references to shared facts,
// rules of the reference plugins, links.
func (r *remover) delKernel(ctx context.Context) error {
	var errs []error
	held, err := r.k.Records.Held(r.a.Owner)
	errs = append(errs, err)
	for _, fact := range held {
		errs = append(errs, netstate.ReleaseFact(ctx, r.k.Records, fact, r.a.Owner, r.k.NFT))
	}
	r.k.Withdraw(&record.Record{Owner: r.a.Owner, Elements: r.a.elements})
	r.k.NFT.Queue(iptnft.Unaccept(iptnft.Owned(string(r.a.Owner)), ""))
	if r.a.ContainerID != "" {
		ev := evidence{k: r.k}
		r.k.NFT.Queue(ev.leftovers(r.a))
	}
	errs = append(errs, r.k.NFT.Commit(ctx))
	host, err := r.k.Host()
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, l := range r.a.links {
		errs = append(errs, deleteLink(host, l))
	}
	return errors.Join(errs...)
}

// deleteLink deletes the link with this index, if it still has its name.
func deleteLink(host *nl.Conn, l link) error {
	now, err := host.LinkAt(l.index)
	if nl.IsNotFound(err) || err == nil && now.Attrs().Name != l.name {
		return nil
	}
	if err == nil {
		err = netstate.DeleteLink(host, now)
	}
	if err != nil && !nl.IsNotFound(err) {
		return fmt.Errorf("delete link %s: %w", l.name, err)
	}
	return nil
}

// delAddresses releases the addresses that the attachment still holds, under the lock of
// the directory. A file that is younger than the evidence belongs to another ADD.
func (r *remover) delAddresses(ctx context.Context) error {
	var errs []error
	for _, p := range r.a.pools {
		errs = append(errs, r.release(ctx, p))
	}
	return errors.Join(errs...)
}

func (r *remover) release(ctx context.Context, p pool) error {
	ev := evidence{paths: r.Paths}
	tx, err := ev.store(p).Begin(ctx, ipam.Existing)
	if err != nil {
		return err
	}
	defer tx.Close()
	held, err := tx.Held(ipam.Owner{ID: r.a.ContainerID, IfName: r.a.IfName})
	errs := []error{err}
	for _, res := range held {
		file := filepath.Join(p.dataDir, p.network, res.Addr.String())
		if !ev.mtime(file).After(r.a.Since) {
			errs = append(errs, tx.Release(res))
		}
	}
	return errors.Join(errs...)
}

func (r *remover) delFiles() error {
	var errs []error
	for _, path := range r.a.files {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
