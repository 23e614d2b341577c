// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/claim"
	"github.com/patchbay-net/patchbay/internal/inventory"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft/iptnft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/ipam"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// remover holds what the removal of one attachment needs.
type remover struct {
	*collector
	s      *plugin.Session
	k      *kernel.Kernel
	a      *Candidate
	detach func(context.Context, *chain.List, chain.Attachment) error // calls DEL; the caller holds the container's locks
}

// lockTime limits how long gc waits for an operation of the runtime library.
const lockTime = 2 * time.Second

// remove takes the locks of the runtime library and a claim. Both make an ADD wait. Then remove
// removes the attachment, or keeps it if it is in use.
func (c *collector) remove(ctx context.Context, a *Candidate) error {
	s := c.NewSession()
	defer s.Close()
	r := &remover{collector: c, s: s, k: kernel.OfSession(s), a: a}
	switch {
	case a.Stray():
		err := a.remove(ctx, r.k)
		a.Removed = err == nil
		return err
	case a.onlyTorn():
		return r.removeSeized(ctx, r.dropTorn)
	case a.ContainerID == "":
		return errors.New("it has no name") // DEL needs a name for the network
	}
	rt := c.Runtime.With(chain.WithInvoker(r))
	waiting, cancel := context.WithTimeout(ctx, lockTime)
	defer cancel()
	entered, err := rt.Alone(waiting, a.Network, a.ContainerID, func(detach func(context.Context, *chain.List, chain.Attachment) error) error {
		r.detach = detach
		return r.removeSeized(ctx, r.removeAll)
	})
	if !entered && errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return r.leave(claim.InUse, nil)
	}
	return err
}

// removeSeized judges the attachment again while ADDs wait. If it is still dead, removeSeized
// removes it.
func (r *remover) removeSeized(ctx context.Context, remove func(context.Context) (keep string, err error)) error {
	done, err := r.k.Records.Collecting(ctx)
	if err != nil {
		return err
	}
	defer done()
	release, keep, err := r.seize()
	if err != nil || keep != "" {
		return r.leave(keep, err)
	}
	defer release()
	keep, err = remove(ctx)
	r.a.Removed = keep == "" && err == nil
	return r.leave(keep, err)
}

// seize claims the attachment in both stores of records. The plugins that gc calls take the locks
// on patchbay-cnm's records, so seize releases these. The claim still makes ADDs wait.
func (r *remover) seize() (release func(), keep string, err error) {
	free, keep, err := r.k.Records.Seize(r.a.Network, r.a.Owner, r.recheck)
	if err != nil || keep != "" || !slices.ContainsFunc(r.a.records, func(k kept) bool { return k.driver }) {
		return free, keep, err
	}
	drivers := record.OfDrivers(r.Paths.State)
	drop, keep, err := drivers.Seize(r.a.Network, r.a.Owner, r.recheck)
	if err != nil || keep != "" {
		free()
		return nil, keep, err
	}
	drivers.UnlockAll(r.a.Network, r.a.Owner)
	return func() { drop(); drivers.Close(); free() }, "", nil
}

// removeAll removes three kinds of things in this order: what records name, what the cached
// configuration describes, and what still exists then. If a step fails, the later steps still
// run. But addresses and leases stay while a rule may lead to them.
func (r *remover) removeAll(ctx context.Context) (keep string, err error) {
	if keep, err = r.delRecords(ctx); keep != "" {
		return keep, err
	}
	err = errors.Join(err, r.delCached(ctx))
	left, also := r.delKernel(ctx)
	if err = errors.Join(err, also, left); left == nil {
		err = errors.Join(err, r.delAddresses(ctx), r.delFiles())
	}
	return "", err
}

// dropTorn removes unreadable records. It cannot call DEL, because the names in the records are lost.
func (r *remover) dropTorn(context.Context) (keep string, err error) {
	for _, k := range r.a.records {
		err = errors.Join(err, r.k.Records.Remove(r.a.Network, r.a.Owner, k.plugin))
	}
	return "", err
}

// leave stores why gc keeps the attachment.
func (r *remover) leave(keep string, err error) error {
	if keep != "" {
		r.a.State, r.a.Why = Unsure, keep
	}
	return err
}

// recheck judges the attachment once more, with its records locked and ADDs waiting. It returns
// the reason to keep the attachment, or "".
func (r *remover) recheck(list []record.CurrentRecord) (keep string) {
	for _, at := range list {
		i := slices.IndexFunc(r.a.records, func(k kept) bool { return k.plugin == at.Plugin })
		if i < 0 || at.Record != nil && r.a.ContainerID == "" || r.a.records[i].ended && !ended(at.Record) {
			return claim.InUse // an ADD has written a record since gc looked
		}
		if at.Record != nil {
			r.a.evidence.Space(at.Record.NetNS, at.Record.NetNSMark)
		}
	}
	if now, err := r.Runtime.Cached(r.a.Network, r.attachment()); err == nil && now != nil {
		if r.a.cached == nil || !now.Since.Equal(r.a.cached.Since) {
			return claim.InUse
		}
		r.a.evidence.Space(now.Place(), nil)
	}
	if state, why := r.world.judge(r.a); state != Dead {
		return why
	}
	return ""
}

// ended reports whether a record of patchbay-cnm says that the attachment has ended.
func ended(rec *record.Record) bool {
	if rec == nil {
		return false
	}
	d, err := rec.DriverOf()
	return err == nil && d != nil && d.Ended
}

func (r *remover) attachment() chain.Attachment {
	return chain.Attachment{ContainerID: r.a.ContainerID, IfName: r.a.IfName}
}

// part returns what the DEL of a record removes.
func (r *remover) part(k kept) inventory.Part {
	switch {
	case k.driver && strings.HasSuffix(k.plugin, "-ipam"):
		return inventory.Address
	case k.driver:
		return inventory.Link
	}
	return kernel.PartOf(r.s, k.plugin)
}

// delRecords calls the DEL of each plugin that has a record, in the order of a removal. If a Docker driver cannot be
// called, the attachment stays.
func (r *remover) delRecords(ctx context.Context) (keep string, err error) {
	var steps []inventory.Step
	for _, k := range r.a.records {
		steps = append(steps, inventory.Step{Part: r.part(k), Do: func() error {
			why, err := r.delRecord(ctx, k)
			if why != "" {
				keep = why
				return inventory.ErrStays
			}
			if err != nil {
				err = fmt.Errorf("plugin %s: %w", k.plugin, err)
			}
			return err
		}})
	}
	err = inventory.Remove(steps...)
	return keep, err
}

// delRecord calls the DEL of one plugin. If a Docker driver cannot be reached, DEL succeeds and
// keeps its record. So if the record is still there, the driver has not been called. Then its
// objects stay on the host until a later call.
func (r *remover) delRecord(ctx context.Context, k kept) (keep string, err error) {
	call := kernel.RecordedDel(k.plugin, r.a.Network, r.a.ContainerID, r.a.IfName)
	if k.driver {
		if err := withIPAM(call); err != nil {
			return "", err
		}
	}
	call.Path, call.NetNS = r.path(k.plugin), r.a.forgotten
	_, err = r.Invoke(ctx, k.plugin, call)
	switch {
	case k.driver && errors.Is(err, invoke.ErrNotFound):
		return fmt.Sprintf("only patchbay-cnm can call its driver: %v; patchbay-cnm install DIR", err), nil
	case err != nil || !k.driver:
		return "", err
	}
	if rec, err := record.OfDrivers(r.Paths.State).Read(r.a.Network, r.a.Owner, k.plugin); rec != nil || err != nil {
		return fmt.Sprintf("the driver that plugin %s uses is unreachable; a later gc, ADD or GC calls it", k.plugin), nil
	}
	return "", nil
}

// withIPAM adds an empty ipam, which cnm-ipam expects in every configuration.
func withIPAM(call *spec.Call) error {
	conf, err := spec.ParseObject(call.Config)
	if err == nil {
		err = conf.Set("ipam", struct{}{})
	}
	if err == nil {
		call.Config, err = conf.JSON()
	}
	return err
}

// path returns the directories in which to search for a plugin's program. For a plugin of this
// program there are none. Another program locks its record itself. So gc releases its own lock
// before, and keeps only the claim.
func (r *remover) path(name string) []string {
	if r.s.Plugin(name) != nil {
		return []string{filepath.Join(r.Paths.Run, "no-plugins")}
	}
	r.k.Records.Unlock(r.a.Network, r.a.Owner, name)
	return r.Runtime.Path()
}

// Invoke calls a plugin in the session that holds the locks, or as another program. After DelTime
// it stops the plugin, so a plugin that hangs does not stop gc.
func (r *remover) Invoke(ctx context.Context, pluginType string, call *spec.Call) ([]byte, error) {
	out, err := invoke.Within(ctx, cmp.Or(r.DelTime, delTime), r.s, pluginType, call)
	return out, errors.Join(err, r.s.Flush(ctx))
}

// delCached calls DEL with the configuration of the ADD, so that other vendors' plugins are
// called too. If the configuration is lost, it only deletes the cached result.
func (r *remover) delCached(ctx context.Context) error {
	if r.a.cached == nil {
		return nil
	}
	list, err := r.Runtime.CachedList(r.a.cached)
	if err != nil {
		list = &chain.List{Name: r.a.Network, CNIVersion: spec.Current}
	}
	return r.detach(ctx, list, r.attachment())
}

// delKernel removes what no plugin's DEL has removed: elements, the holders of facts, rules of
// the reference plugins, and links. left says that elements or links may still lead to the addresses. A kernel
// without nftables has no elements.
func (r *remover) delKernel(ctx context.Context) (left, err error) {
	var errs []error
	held, err := r.k.Records.FactsOf(r.a.Owner)
	errs = append(errs, err)
	for _, fact := range held {
		errs = append(errs, r.k.ReleaseFact(ctx, fact, r.a.Owner))
	}
	r.k.Withdraw(&record.Record{Owner: r.a.Owner, Elements: r.a.elements})
	r.k.NFT.Queue(iptnft.Unaccept(iptnft.Owned(string(r.a.Owner)), ""))
	if r.a.ContainerID != "" {
		r.k.NFT.Queue(leftovers(r.a))
	}
	if left = r.k.NFT.Commit(ctx); left != nil && r.k.NFT.Absent() {
		left = nil
	}
	host, err := r.k.Host()
	if err != nil {
		return err, errors.Join(errs...)
	}
	for _, l := range r.a.links {
		left = errors.Join(left, deleteLink(host, l))
	}
	return left, errors.Join(errs...)
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

// delAddresses locks the directory and releases the addresses that the attachment still has. It
// keeps a file that is younger than the attachment's traces, because another ADD wrote it.
func (r *remover) delAddresses(ctx context.Context) error {
	var errs []error
	for _, p := range r.a.pools {
		errs = append(errs, r.release(ctx, p))
	}
	return errors.Join(errs...)
}

func (r *remover) release(ctx context.Context, p pool) error {
	tx, err := r.store(p).Begin(ctx, ipam.Existing)
	if err != nil {
		return err
	}
	defer tx.Close()
	held, err := tx.Held(ipam.Holder{ID: r.a.ContainerID, IfName: r.a.IfName})
	errs := []error{err}
	for _, res := range held {
		if !res.Since.After(r.a.Since) {
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
