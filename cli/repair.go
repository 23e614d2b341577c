// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/order"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/firewall"
	"github.com/patchbay-net/patchbay/plugin/policy"
)

const repairLong = `Restore what was removed from our firewall table, for example by nft flush
ruleset, by a restarted firewall service, or by Docker when it starts: chains
and rules, the elements of networks, and those of every attachment whose
namespace exists. Where network policies select a pod and nothing enforces them,
it closes the pod. On the host it restores bridges, their addresses and ports,
forwarding, the routes of ptp, and the sysctl that 127.0.0.1 needs to reach
published ports. The records below /run/patchbay and the cached results list
what must exist. What exists is not changed, so repair can run at any time, for
example in a hook of the firewall's service. What stays missing, as in a
container, is shown as skipped.`

type repairCommand struct {
	app  *app
	JSON bool `long:"json" description:"print a JSON object"`
}

// repaired is what repair prints.
type repaired struct {
	Rules    []string `json:"rules,omitempty"`    // rules that were missing or had changed
	Restored []string `json:"restored"`           // elements
	Replaced []string `json:"replaced,omitempty"` // elements without an owner that had the same keys
	Skipped  []string `json:"skipped,omitempty"`

	mended []string // Restored in a user's words, one line for all elements of an attachment
}

// Execute repairs everything that it can. If something stays broken, Execute fails.
func (c *repairCommand) Execute([]string) error {
	if err := needRoot("repair"); err != nil {
		return err
	}
	s := c.app.session()
	defer s.Close()
	k := kernel.OfSession(s)
	r := &repairer{app: c.app, session: s, k: k, fw: k.NFT, dir: k.Records, env: &netstate.Env{NFT: k.NFT}, out: repaired{Restored: []string{}}}
	err := errors.Join(r.run(c.app.ctx), r.mend(c.app.ctx), r.host(c.app.ctx))
	r.unrepaired(c.app.ctx)
	return errors.Join(c.app.show(r.out, r.out.text()), err)
}

func (o *repaired) text() string {
	t := newTable("WHAT", "OBJECT")
	for _, s := range o.Rules {
		t.row("rewritten", s)
	}
	for _, s := range o.mended {
		t.row("restored", s)
	}
	for _, s := range o.Replaced {
		t.row("replaced", s+", which is no living attachment's")
	}
	for _, s := range o.Skipped {
		t.row("skipped", s)
	}
	if len(o.Rules)+len(o.Restored)+len(o.Replaced)+len(o.Skipped) == 0 {
		return "nothing was missing\n"
	}
	return t.String()
}

type repairer struct {
	app     *app
	session *plugin.Session
	k       *kernel.Kernel
	fw      *nft.Conn
	dir     *record.Dir
	env     *netstate.Env
	out     repaired

	records   []*record.Record
	torn      []record.Torn
	sound     map[owner.Key]bool // attachments of which CHECK found nothing missing
	ownerless map[string]bool    // elements without a living owner; the attachment that is being repaired replaces them
	accepted  bool               // no rule that accepts by address is missing in iptables
}

// run repairs the rules first, then the networks, then the attachments. It changes each fact and
// each attachment in a separate transaction. So if the kernel refuses one transaction, the others
// still work.
func (r *repairer) run(ctx context.Context) error {
	done, err := r.dir.Repairing(ctx)
	if err != nil {
		return err
	}
	defer done()
	errs := []error{r.rules(ctx)}
	_, facts, err := r.dir.Facts()
	errs = append(errs, err)
	for _, f := range facts {
		errs = append(errs, r.dir.WithFact(ctx, f.Name, func(f record.Fact) error { return r.fact(ctx, f) }))
	}
	records, torn, err := r.dir.Scan("")
	errs = append(errs, err)
	for _, t := range torn {
		errs = append(errs, t.Err)
	}
	// If one attachment took elements from another, repair the one that took them last.
	order.Stable(records, func(a, b *record.Record) int { return cmp.Compare(len(a.Displaced), len(b.Displaced)) })
	r.accepted, err = netstate.AllAccepted(r.env, records)
	errs = append(errs, err)
	r.records, r.torn = records, torn
	for _, rec := range records {
		errs = append(errs, r.attachment(ctx, rec))
	}
	return errors.Join(errs...)
}

// fact restores the firewall state that several attachments share. This state always has
// elements. It may also have a chain of conditions, or a rule in another program's table.
func (r *repairer) fact(ctx context.Context, f record.Fact) error {
	beside := f
	beside.Elements = nil
	missing, err := netstate.HeldFact{Fact: beside}.Diff(ctx, r.env)
	if err != nil {
		return fmt.Errorf("repair %s: %w", f.Name, err)
	}
	netstate.RestoreFact(r.fw, f)
	err = r.commit(ctx, f.Name, f.Elements)
	if err == nil && missing != "" {
		r.restored(f.Name)
	}
	return err
}

// rules writes those chains and rules again that have changed.
func (r *repairer) rules(ctx context.Context) (err error) {
	r.out.Rules, err = r.fw.Restore(ctx)
	return err
}

// named formats the name of an attachment for the output of repair.
func named(network, id, ifName string) string { return fmt.Sprintf("%s %s/%s", network, id, ifName) }

// lock locks a record. So an ADD or DEL runs before or after the repair, not during it. If the
// record is deleted, or if an ADD or DEL is working on it, lock returns a nil record.
func (r *repairer) lock(listed *record.Record) (rec *record.Record, name string, unlock func(), err error) {
	name = named(listed.Network, listed.ContainerID, listed.IfName)
	rec, ok, err := r.dir.TryReadLocked(listed.Network, listed.Owner, listed.Plugin, settle)
	if !ok {
		r.out.Skipped = append(r.out.Skipped, name+": an ADD or DEL is working on it")
		rec, err = nil, nil
	}
	return rec, name, func() { r.dir.Unlock(listed.Network, listed.Owner, listed.Plugin) }, err
}

// attachment restores the firewall elements of one attachment while its record is locked. If
// the namespace is gone, it does nothing, because DEL or GC will remove the attachment.
func (r *repairer) attachment(ctx context.Context, listed *record.Record) error {
	if len(listed.Elements)+len(listed.Sources)+len(listed.Accepts) == 0 && listed.Policed == nil && listed.Sends == nil {
		return nil
	}
	rec, name, unlock, err := r.lock(listed)
	defer unlock()
	switch {
	case err != nil || rec == nil:
		return err
	case rec.NetNS == "" || !r.k.Lives(rec):
		r.out.Skipped = append(r.out.Skipped, name+": its namespace is gone")
		return nil
	}
	added, zoneErr := firewall.Restore(ctx, rec)
	for _, a := range added {
		r.restored(fmt.Sprintf("firewalld zone %s: %s", rec.Zone, a))
	}
	elements := r.restorable(name, rec)
	r.ownerless = make(map[string]bool)
	r.fw.AddOrDecide(func(conflict *nft.ConflictError) error { return r.resolveConflict(rec, conflict) }, elements...)
	missing, acceptErr := r.accepts(ctx, rec)
	err = r.commit(ctx, name, elements)
	if err == nil {
		r.out.Replaced = append(r.out.Replaced, slices.Sorted(maps.Keys(r.ownerless))...)
	}
	if err == nil && missing != "" {
		r.restored(name + ": " + missing)
	}
	closed, policyErr := policy.Restore(ctx, r.session.Paths, r.fw, rec)
	for _, what := range closed {
		r.restored(name + ": network policies: " + what)
	}
	return errors.Join(zoneErr, acceptErr, err, policyErr)
}

// accepts makes iptables accept the attachment's addresses, if iptables drops its packets. It
// returns which rules were missing.
func (r *repairer) accepts(ctx context.Context, rec *record.Record) (missing string, err error) {
	if len(rec.Accepts) == 0 || r.accepted {
		return "", nil
	}
	accepted := netstate.AcceptedOf(rec)
	if missing, err = accepted.Diff(ctx, r.env); err != nil || missing == "" {
		return "", err
	}
	_, err = accepted.Ensure(ctx, r.env)
	return missing, err
}

// settle is how long repair waits for an ADD or DEL that works on the attachment. After that,
// repair skips the attachment, because an ADD or DEL leaves the firewall correct.
const settle = 2 * time.Second

// resolveConflict decides which attachment gets an element that rec and another attachment both need. If the ADD of
// one displaced the other from the element, the displacing attachment gets the element again. Otherwise rec gets the
// element in three cases: the element's owner is not alive, the element publishes no port, or its owner is another
// attachment of the same container. In the last two cases resolveConflict stores the other owner in rec.Displaced,
// because a record that was reconstructed lacks it. It gives rec no port of another container.
func (r *repairer) resolveConflict(rec *record.Record, conflict *nft.ConflictError) error {
	key, _ := nft.OwnerOf(conflict.Have.Comment)
	from := owner.Key(key)
	if slices.Contains(rec.Displaced, from) {
		return nil
	}
	lives := slices.ContainsFunc(r.torn, func(t record.Torn) bool { return t.Owner == from })
	sibling := false
	for _, other := range r.records {
		if other.Owner != from {
			continue
		}
		if slices.Contains(other.Displaced, rec.Owner) {
			return nft.ErrKeep
		}
		lives = lives || r.k.Lives(other)
		sibling = sibling || other.ContainerID == rec.ContainerID
	}
	switch isPort := len(conflict.Want.Data) > 0; {
	case !lives:
		r.ownerless[conflict.Have.String()] = true
		return nil
	case isPort && !sibling:
		return conflict
	}
	rec.Displaced = append(rec.Displaced, from)
	return r.dir.Rewrite(rec)
}

// commit commits the queued changes, and adds the elements that were missing to the output.
func (r *repairer) commit(ctx context.Context, name string, elements []nft.Element) error {
	var missing, what []string
	for _, e := range elements {
		have, there, err := r.fw.Get(e.Set, e.Key)
		if err != nil {
			r.fw.Discard()
			return fmt.Errorf("repair %s: %w", name, err)
		}
		if !there || e.Changed(have) {
			missing = append(missing, e.String())
			what = append(what, e.Meaning().What)
		}
	}
	if err := r.fw.Commit(ctx); err != nil {
		return fmt.Errorf("repair %s: %w", name, err)
	}
	r.out.Restored = append(r.out.Restored, missing...)
	if len(what) > 0 {
		slices.Sort(what)
		r.out.mended = append(r.out.mended, name+": "+strings.Join(slices.Compact(what), ", "))
	}
	return nil
}

// restored adds a text in a user's words to both lists of the output.
func (r *repairer) restored(what string) {
	r.out.Restored = append(r.out.Restored, what)
	r.out.mended = append(r.out.mended, what)
}
