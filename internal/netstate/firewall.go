// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nft/eval"
	"github.com/patchbay-net/patchbay/internal/nft/iptnft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
)

// Element is an element of the table `inet patchbay` that belongs to one attachment. Ensure
// queues it. At the end the session commits the whole queue once.
type Element struct{ nft.Element }

// String describes the element in a sentence. The record has its bytes.
func (e Element) String() string { return "host: firewall: " + e.Meaning().Does }

// Ensure queues the element. Ensure has nothing to undo, because a failed request discards the
// queue.
func (e Element) Ensure(_ context.Context, env *Env) (Undo, error) {
	if env.Conflict == nil {
		env.NFT.Add(e.Element)
	} else {
		env.NFT.AddOrDecide(env.decide, e.Element)
	}
	return nil, nil
}

func (env *Env) decide(conflict *nft.ConflictError) error {
	warning, err := env.Conflict(conflict)
	if warning != nil {
		env.Warn(warning)
	}
	return err
}

// Diff describes in a sentence what is lost.
func (e Element) Diff(ctx context.Context, env *Env) (string, error) {
	return Sentence(e.Lost(ctx, env))
}

// Lost looks the element up by its key.
func (e Element) Lost(_ context.Context, env *Env) ([]Lost, error) {
	return lostElements(env, e.Element)
}

// HeldFact is a fact that this attachment holds.
type HeldFact struct {
	record.Fact
	Owner owner.Key
}

// String lists the elements.
func (f HeldFact) String() string {
	var parts []string
	for _, e := range f.Elements {
		parts = append(parts, e.Meaning().Does)
	}
	for _, x := range extras(f.Fact) {
		parts = append(parts, x.String())
	}
	return "host: firewall: " + strings.Join(parts, "; ")
}

// Ensure makes the attachment a holder of the fact before it queues the elements. So another
// holder that leaves cannot remove the elements afterwards. If an earlier ADD made the attachment
// a holder, it stays one even if this ADD fails.
func (f HeldFact) Ensure(ctx context.Context, env *Env) (Undo, error) {
	held := env.Records.Holds(f.Name, f.Owner)
	if err := env.Records.Hold(ctx, f.Fact, f.Owner, env.First); err != nil {
		return nil, err
	}
	if env.HolderAdded != nil {
		env.HolderAdded(f.Name, f.Owner)
	}
	QueueFact(env.NFT, f.Fact)
	if held {
		return nil, nil
	}
	return func(ctx context.Context) error { return ReleaseFact(ctx, env.Records, f.Name, f.Owner, env.NFT) }, nil
}

// Diff describes in a sentence what is lost.
func (f HeldFact) Diff(ctx context.Context, env *Env) (string, error) {
	return Sentence(f.Lost(ctx, env))
}

// Lost looks up the elements of the fact and its other rules.
func (f HeldFact) Lost(_ context.Context, env *Env) ([]Lost, error) {
	lost, err := lostElements(env, f.Elements...)
	if err != nil {
		return lost, err
	}
	if f.Conditions != nil {
		err = lostExtra(env, f.Conditions.Restore(), "conditions of published ports", &lost)
	}
	if err == nil && len(f.FastPath) > 0 {
		err = lostExtra(env, nft.EnsureFastPath(f.FastPath...), "fast path", &lost)
	}
	if err == nil && len(f.Accepts) > 0 {
		err = lostAccept(env, Sources(f.Fact, f.Accepts...), f.AdminChain, &lost)
	}
	return lost, err
}

// lostAccept finds sources whose traffic FORWARD does not accept. Rules of other programs may
// accept it. If lostAccept cannot decide whether they do, it reports nothing, and doctor warns.
func lostAccept(env *Env, sources []iptnft.Source, admin string, lost *[]Lost) error {
	var missing []Lost
	err := lostExtra(env, iptnft.Accept(sources, admin), "acceptance of forwarded traffic", &missing)
	if err != nil || missing == nil {
		return err
	}
	passed, err := iptnft.Passed(env.NFT, sources)
	if passed == eval.No {
		*lost = append(*lost, missing...)
	}
	return err
}

func lostExtra(env *Env, x nft.Extra, what string, lost *[]Lost) error {
	todo, err := x.Plan(env.NFT)
	if todo != nil && err == nil {
		*lost = append(*lost, Lost{what, "the firewall does not " + x.String()})
	}
	return err
}

// RestoreFact works like QueueFact, and also repairs elements and rules that were changed. The
// repair command uses it.
func RestoreFact(fw *nft.Conn, f record.Fact) {
	if f.Conditions != nil {
		fw.Queue(f.Conditions.Restore())
		f.Conditions = nil
	}
	QueueFact(fw, f)
}

// QueueFact queues the elements and rules of a fact.
func QueueFact(fw *nft.Conn, f record.Fact) {
	for _, x := range extras(f) {
		fw.Queue(x)
	}
	fw.Add(f.Elements...)
}

// extras returns what a fact has in addition to elements.
func extras(f record.Fact) (out []nft.Extra) {
	if f.Conditions != nil {
		out = append(out, f.Conditions.Ensure())
	}
	if len(f.FastPath) > 0 {
		out = append(out, nft.EnsureFastPath(f.FastPath...))
	}
	if len(f.Accepts) > 0 {
		out = append(out, iptnft.Accept(Sources(f, f.Accepts...), f.AdminChain))
	}
	return out
}

// Sources turns subnets of a fact into sources.
func Sources(f record.Fact, subnets ...netip.Prefix) []iptnft.Source {
	list := iptnft.On(f.Bridge, subnets...)
	for i := range list {
		list[i].Inside, list[i].Open = f.Inside, f.Open
	}
	return list
}

// ReleaseFact removes o from the holders of a fact. If o was the last holder, ReleaseFact first
// calls before (if given), and then starts the removal of the fact's elements. It holds the
// fact's lock while it does both. It does not wait until the elements have expired; the Commit at
// the end of the session does. If another process adds such an element meanwhile, that process
// waits until the old element is gone.
//
// The subnets of networks may be nested, and a set holds only the widest range. So when
// ReleaseFact removes a range, it queues the ranges of other facts inside it again. It leaves all
// other facts alone, because other processes may release them at the same time.
func ReleaseFact(ctx context.Context, s *record.Dir, name string, o owner.Key, fw *nft.Conn, before ...func(record.Fact) error) error {
	return s.Release(ctx, name, o, func(f record.Fact) error {
		for _, fn := range before {
			if err := fn(f); err != nil {
				return err
			}
		}
		fw.Remove(f.Elements...)
		fw.Add(nested(s, f)...)
		if f.Conditions != nil {
			fw.Queue(f.Conditions.Drop())
		}
		if len(f.FastPath) > 0 {
			fw.Queue(nft.LeaveFastPath(f.Elements...))
		}
		unaccept(s, f, fw)
		return send(ctx, fw)
	})
}

// unaccept removes the accept rules of the fact's sources, except sources that another fact on the
// same bridge accepts. If networks have the same sources and only their operator's chains differ,
// they share these rules.
func unaccept(s *record.Dir, f record.Fact, fw *nft.Conn) {
	if len(f.Accepts) == 0 {
		return
	}
	others := s.Others(f.Name)
	alone := slices.DeleteFunc(slices.Clone(f.Accepts), func(p netip.Prefix) bool {
		return slices.ContainsFunc(others, func(o record.Fact) bool {
			return o.Bridge == f.Bridge && o.Inside == f.Inside && o.Open == f.Open && slices.Contains(o.Accepts, p)
		})
	})
	if len(alone) > 0 {
		fw.Queue(iptnft.Unaccept(Sources(f, alone...), f.AdminChain))
		return
	}
	fw.Queue(iptnft.LeaveAdmin(f.AdminChain, func() bool { return AdminNamed(s, f.AdminChain, f.Name) }))
}

// AdminNamed reports whether an attachment, or a fact other than except, names an operator's
// chain. If a record or a fact cannot be read, AdminNamed returns true.
func AdminNamed(s *record.Dir, adminChain, except string) bool {
	records, torn, err := s.Scan("")
	_, facts, ferr := s.Facts()
	return err != nil || ferr != nil || len(torn) > 0 ||
		slices.ContainsFunc(records, func(r *record.Record) bool { return len(r.Accepts) > 0 && r.AdminChain == adminChain }) ||
		slices.ContainsFunc(facts, func(f record.Fact) bool {
			return len(f.Accepts) > 0 && f.AdminChain == adminChain && f.Name != except
		})
}

// send starts the removal of elements by letting them expire. While it is not known whether
// elements expire on this kernel, send waits, and deletes elements that did not expire.
// Otherwise, after a kill of this process, such elements would stay without a holder.
func send(ctx context.Context, fw *nft.Conn) error {
	if _, known := fw.ExpiryWorks(); known {
		return fw.Start(ctx)
	}
	return fw.Commit(ctx)
}

// nested returns elements of other facts that lie within a range of f. If f has no ranges, nested
// returns at once and reads no other fact. There may be as many facts as attachments.
func nested(s *record.Dir, f record.Fact) (out []nft.Element) {
	if !slices.ContainsFunc(f.Elements, func(e nft.Element) bool { return len(e.KeyEnd) > 0 }) {
		return nil
	}
	for _, other := range s.Others(f.Name) {
		for _, e := range other.Elements {
			if slices.ContainsFunc(f.Elements, func(wide nft.Element) bool { return wide.Covers(e) }) {
				out = append(out, e)
			}
		}
	}
	return out
}

// Accepted are the addresses of one attachment that an iptables-nft FORWARD chain must accept,
// if that chain drops other traffic.
type Accepted struct {
	Addrs      []netip.Prefix // single addresses
	Open       bool           // new connections to them are accepted too
	AdminChain string
	Comment    string // comment of the attachment: nft.Comment
	New        bool   // the attachment has no rules yet, so an ADD need not look for them
}

// AcceptedOf returns the accepted addresses in a record.
func AcceptedOf(rec *record.Record) Accepted {
	comment := nft.Comment(string(rec.Owner), rec.Network, rec.ContainerID, rec.IfName)
	return Accepted{Addrs: rec.Accepts, Open: rec.Open, AdminChain: rec.AdminChain, Comment: comment}
}

func (a Accepted) sources() []iptnft.Source {
	sources := iptnft.On("", a.Addrs...)
	for i := range sources {
		sources[i].Owner, sources[i].New, sources[i].Open = a.Comment, a.New, a.Open
	}
	return sources
}

func (a Accepted) extra() nft.Extra { return iptnft.Accept(a.sources(), a.AdminChain) }

// String names the accepted addresses.
func (a Accepted) String() string { return "host: firewall: " + a.extra().String() }

// Ensure queues the rules. Ensure has nothing to undo, because a failed request discards the
// queue.
func (a Accepted) Ensure(_ context.Context, env *Env) (Undo, error) {
	env.NFT.Queue(a.extra())
	return nil, nil
}

// Diff describes in a sentence what is lost.
func (a Accepted) Diff(ctx context.Context, env *Env) (string, error) {
	return Sentence(a.Lost(ctx, env))
}

// Lost reports missing rules.
func (a Accepted) Lost(_ context.Context, env *Env) (lost []Lost, err error) {
	if len(a.Addrs) > 0 {
		a.New = false
		err = lostAccept(env, a.sources(), a.AdminChain, &lost)
	}
	return lost, err
}

// AllAccepted reports whether the addresses of all records are accepted. It reads the rules only
// once, while a look for each record would read them each time.
func AllAccepted(env *Env, records []*record.Record) (bool, error) {
	byAdmin := make(map[string][]iptnft.Source)
	for _, rec := range records {
		byAdmin[rec.AdminChain] = append(byAdmin[rec.AdminChain], AcceptedOf(rec).sources()...)
	}
	for admin, sources := range byAdmin {
		todo, err := iptnft.Accept(sources, admin).Plan(env.NFT)
		if err != nil || todo != nil {
			return false, err
		}
	}
	return true, nil
}

// Table is one of our firewall tables as a whole. If its chains and rules are missing, its
// elements have no effect. If another program added a rule, that rule may drop the traffic
// that the elements serve.
type Table struct{ Bridge bool }

func (t Table) family() nftables.TableFamily {
	if t.Bridge {
		return nftables.TableFamilyBridge
	}
	return nftables.TableFamilyINet
}

// String returns the name of the table.
func (t Table) String() string {
	if t.Bridge {
		return "host: firewall: table bridge " + nft.TableName
	}
	return "host: firewall: table inet " + nft.TableName
}

// Ensure does nothing, because the first element creates the table.
func (Table) Ensure(context.Context, *Env) (Undo, error) { return nil, nil }

// mostChanges is how many changes of a table a sentence lists.
const mostChanges = 3

// Diff lists the changes of the table. Diff skips a table that a newer program made.
func (t Table) Diff(_ context.Context, env *Env) (string, error) {
	diffs, err := env.NFT.VerifyTable(t.family())
	var newer *nft.NewerSchemaError
	if errors.As(err, &newer) {
		return "", nil
	}
	if err != nil || len(diffs) == 0 {
		return "", err
	}
	more := ""
	if n := len(diffs) - mostChanges; n > 0 {
		diffs, more = diffs[:mostChanges], fmt.Sprintf("; and %d more", n)
	}
	return strings.Join(diffs, "; ") + more + " (run patchbay repair)", nil
}

// Tables returns the tables that the state's elements use, except tables that are in the state
// already.
func (s State) Tables() (tables State) {
	var has, named [2]bool
	note := func(elems ...nft.Element) {
		for _, e := range elems {
			bridge := e.Family() == nftables.TableFamilyBridge
			has[0], has[1] = has[0] || !bridge, has[1] || bridge
		}
	}
	for _, o := range s {
		switch o := o.(type) {
		case Element:
			note(o.Element)
		case HeldFact:
			note(o.Elements...)
			has[0] = has[0] || o.Conditions != nil || len(o.FastPath) > 0
		case Table:
			named[0], named[1] = named[0] || !o.Bridge, named[1] || o.Bridge
		}
	}
	for i, there := range has {
		if there && !named[i] {
			tables = append(tables, Table{Bridge: i == 1})
		}
	}
	return tables
}
