// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cli/doctor"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/order"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/portmap"
	"github.com/patchbay-net/patchbay/plugin/ptp"
)

// host restores what living attachments need on the host outside the firewall. Some of it was
// removed together with another attachment of the same address. Attachments that took an address
// from another one are repaired first, so that the other one does not get it back.
func (r *repairer) host(ctx context.Context) (err error) {
	if r.env.Host, err = r.k.Host(); err != nil {
		return err
	}
	r.env.Warn, r.env.Records = r.app.warn, r.k.Records
	list, _ := doctor.NewInspector(r.k, r.app.paths.Proc).List(r.app.runtime(nil)) // doctor reports broken files
	order.Stable(list, func(a, b *doctor.Attached) int { return displacedCount(b) - displacedCount(a) })
	var errs []error
	for _, a := range list {
		for _, rec := range a.Records {
			if err := r.ends(ctx, a, rec); err != nil {
				errs = append(errs, fmt.Errorf("repair %s: %w", a.Name(), err))
			}
		}
	}
	return errors.Join(errs...)
}

func displacedCount(a *doctor.Attached) (n int) {
	for _, r := range a.Records {
		n = max(n, len(r.Displaced))
	}
	return n
}

// ends repairs the host's side of an attachment. It first looks without a lock. If something is
// missing, it locks the record and looks again.
func (r *repairer) ends(ctx context.Context, a *doctor.Attached, listed *record.Record) error {
	if s, err := r.lacking(ctx, a, listed); len(s) == 0 || err != nil {
		return err
	}
	rec, name, unlock, err := r.lock(listed)
	defer unlock()
	if err != nil || rec == nil {
		return err
	}
	s, err := r.lacking(ctx, a, rec)
	if err != nil {
		return err
	}
	for _, o := range s {
		if err := r.make(ctx, name, o); err != nil {
			return err
		}
	}
	return nil
}

// lacking returns the host's objects that are missing. For a dead attachment there are none.
func (r *repairer) lacking(ctx context.Context, a *doctor.Attached, rec *record.Record) (netstate.State, error) {
	if rec.NetNS == "" || !r.k.Lives(rec) {
		return nil, nil
	}
	switch rec.Plugin {
	case ptp.Plugin.Name:
		return ptp.Lacking(r.env, rec, a.Result)
	case portmap.Plugin.Name:
		return portmap.Lacking(ctx, r.k, r.env, rec, a.Records)
	}
	return nil, nil
}

// make creates an object and reports it. If /proc/sys is read-only, Ensure only warns and leaves a
// sysctl unchanged, so make does not report it.
func (r *repairer) make(ctx context.Context, name string, o netstate.Object) error {
	if _, err := o.Ensure(ctx, r.env); err != nil {
		r.fw.Discard()
		return err
	}
	if err := r.fw.Commit(ctx); err != nil {
		return err
	}
	still, err := o.Diff(ctx, r.env)
	if err == nil && still == "" {
		r.restored(name + ": " + strings.TrimPrefix(o.String(), "host: "))
	}
	return err
}

// restorable returns the elements of rec that can be restored. The conditions of a network's
// published ports own a map. If the fact that describes this map is lost, restorable leaves out
// the map's elements, because with them the whole transaction would fail.
func (r *repairer) restorable(name string, rec *record.Record) []nft.Element {
	list := slices.Clone(rec.Elements)
	for _, fact := range rec.Shared {
		id, ok := strings.CutPrefix(fact, portmap.FactConditions)
		if _, err := r.dir.Fact(fact); !ok || !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		list = slices.DeleteFunc(list, func(e nft.Element) bool { return strings.HasSuffix(e.Set, "_"+id) && !r.exists(e) })
	}
	if len(list) < len(rec.Elements) {
		r.out.Skipped = append(r.out.Skipped, fmt.Sprintf("%s: the conditions of its published ports are lost with %s/shared: attach it again (patchbay del and add)", name, r.dir.Path))
	}
	return list
}

func (r *repairer) exists(e nft.Element) bool {
	_, exists, err := r.fw.Get(e.Set, e.Key)
	return exists && err == nil
}

// mend restores objects of the host that the plugins' CHECKs find missing, such as a bridge or its
// address. It leaves attachments alone that have no records of ours, or on which an ADD or DEL works.
func (r *repairer) mend(ctx context.Context) error {
	r.sound = make(map[owner.Key]bool)
	list, _ := doctor.NewInspector(r.k, r.app.paths.Proc).List(r.app.runtime(nil)) // doctor reports broken files
	for _, a := range list {
		l, err := chain.ParseCached(a.Config)
		if err != nil || a.NetNSDeleted() || a.NetNS == "" || len(a.Records) == 0 || r.busy(a) {
			continue
		}
		d := netstate.Found(doctor.Inspect(ctx, r.mending(a), r.session, l, a.Attachment))
		r.sound[a.Owner()] = !d.Any()
	}
	return ctx.Err()
}

// mending returns a runtime whose CHECKs restore, and report what they restored of the attachment.
func (r *repairer) mending(a *doctor.Attached) *chain.Runtime {
	name := named(a.Network, a.ContainerID, a.IfName)
	return r.app.runtime(nil).With(chain.WithInvoker(&plugin.Builtin{NewSession: func() *plugin.Session {
		s := r.app.session()
		s.Mended = func(line string) {
			r.restored(name + ": " + strings.TrimPrefix(line, "host: "))
		}
		return s
	}}))
}

// busy reports whether an ADD or DEL works on the attachment.
func (r *repairer) busy(a *doctor.Attached) bool {
	return slices.ContainsFunc(a.Records, func(rec *record.Record) bool { return r.dir.Busy(rec.Network, rec.Owner, rec.Plugin) })
}

// unrepaired reports what living attachments still lack. It ignores files that cannot be read,
// because doctor reports them.
func (r *repairer) unrepaired(ctx context.Context) {
	inspector := doctor.NewInspector(r.k, r.app.paths.Proc)
	list, _ := inspector.List(r.app.runtime(nil))
	for _, a := range list {
		if r.sound[a.Owner()] {
			continue
		}
		name := named(a.Network, a.ContainerID, a.IfName)
		reported := slices.ContainsFunc(r.out.Skipped, func(s string) bool { return strings.HasPrefix(s, name+":") })
		if why := r.lacks(ctx, inspector, a); why != "" && !reported {
			r.out.Skipped = append(r.out.Skipped, name+": "+why)
		}
	}
}

// lacks describes what a living attachment still lacks after the repair, and what to do.
func (r *repairer) lacks(ctx context.Context, inspector *doctor.Inspector, a *doctor.Attached) string {
	switch {
	case a.NetNSDeleted():
		return ""
	case inspector.Unrecorded(a):
		return fmt.Sprintf("its records below %s are lost, so its firewall elements are not known: "+
			"attach it again (patchbay check NETWORK NETNS lists what is missing)", r.app.paths.Run)
	case len(a.Records) == 0 || a.NetNS == "" || r.busy(a):
		return ""
	}
	known, err := inspector.Firewall(ctx, a) // run has reported already why these elements are missing
	l, perr := chain.ParseCached(a.Config)
	if err != nil || perr != nil {
		return ""
	}
	d := netstate.Found(doctor.Inspect(ctx, r.app.runtime(nil), r.session, l, a.Attachment))
	var why []string
	if len(d.Lost) > 0 && len(known) == 0 {
		why = append(why, fmt.Sprintf("%s missing, and its records below %s are lost", d.Sentence(), r.app.paths.Run))
	}
	if why = append(why, d.Other...); len(why) == 0 {
		return ""
	}
	return strings.Join(why, "; ") + ": attach it again (patchbay del and add)"
}
