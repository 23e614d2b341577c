// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nft/follow"
	"github.com/patchbay-net/patchbay/internal/nft/iptnft"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/owner"
)

// Element is one element of the table `inet patchbay` that belongs to one
// attachment. Ensure queues it; the session commits the queue once.
type Element struct{ nft.Element }

// String is a sentence; the record has the elements.
func (e Element) String() string { return "host: firewall: " + e.Meaning().Does }

// Ensure queues the element. There is nothing to undo: a request that fails
// discards the queue.
func (e Element) Ensure(_ context.Context, env *Env) (Undo, error) {
	if env.Taken == nil {
		env.NFT.Add(e.Element)
	} else {
		env.NFT.Claim(env.Taken, e.Element)
	}
	return nil, nil
}

// Diff returns what is lost, as a sentence.
func (e Element) Diff(ctx context.Context, env *Env) (string, error) {
	return Sentence(e.Lost(ctx, env))
}

// Lost looks the element up by key.
func (e Element) Lost(_ context.Context, env *Env) ([]Lost, error) {
	return lostElements(env, e.Element)
}

// Fact is a shared firewall fact, held by one attachment.
type Fact struct {
	record.Fact
	Owner owner.Key
}

// String has a part for each element.
func (f Fact) String() string {
	var parts []string
	for _, e := range f.Elements {
		parts = append(parts, e.Meaning().Does)
	}
	for _, x := range extras(f.Fact) {
		parts = append(parts, x.String())
	}
	return "host: firewall: " + strings.Join(parts, "; ")
}

// Ensure takes a reference before it queues the elements, so that the last holder of the
// same fact cannot remove them afterwards. A reference of an earlier ADD remains when this
// ADD fails.
func (f Fact) Ensure(ctx context.Context, env *Env) (Undo, error) {
	held := env.Records.Holds(f.Name, f.Owner)
	if err := env.Records.Hold(ctx, f.Fact, f.Owner, env.First); err != nil {
		return nil, err
	}
	QueueFact(env.NFT, f.Fact)
	if held {
		return nil, nil
	}
	return func(ctx context.Context) error { return ReleaseFact(ctx, env.Records, f.Name, f.Owner, env.NFT) }, nil
}

// Diff returns what is lost, as a sentence.
func (f Fact) Diff(ctx context.Context, env *Env) (string, error) { return Sentence(f.Lost(ctx, env)) }

// Lost looks up the elements of the fact and its other rules.
func (f Fact) Lost(_ context.Context, env *Env) ([]Lost, error) {
	lost, err := lostElements(env, f.Elements...)
	if err != nil {
		return lost, err
	}
	if f.Conditions != nil {
		err = lostExtra(env, f.Conditions.Restore(), "conditions of published ports", &lost)
	}
	if err == nil && len(f.Accepts) > 0 {
		err = lostAccept(env, accepted(f.Fact, f.Accepts...), f.AdminChain, &lost)
	}
	return lost, err
}

// lostAccept finds sources that are not accepted. Rules of other programs may accept them;
// where that cannot be decided doctor warns.
func lostAccept(env *Env, sources []iptnft.Source, admin string, lost *[]Lost) error {
	var missing []Lost
	err := lostExtra(env, iptnft.Accept(sources, admin), "acceptance of forwarded traffic", &missing)
	if err != nil || missing == nil {
		return err
	}
	passed, err := iptnft.Passed(env.NFT, sources)
	if passed == follow.No {
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

// RestoreFact is QueueFact that also mends what exists and was changed, for repair.
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

// extras returns what a fact has beside elements.
func extras(f record.Fact) (out []nft.Extra) {
	if f.Conditions != nil {
		out = append(out, f.Conditions.Ensure())
	}
	if len(f.Accepts) > 0 {
		out = append(out, iptnft.Accept(accepted(f, f.Accepts...), f.AdminChain))
	}
	return out
}

// accepted returns some subnets of a fact as sources.
func accepted(f record.Fact, subnets ...netip.Prefix) []iptnft.Source {
	list := iptnft.On(f.Bridge, subnets...)
	for i := range list {
		list[i].Inside = f.Inside
	}
	return list
}

// ReleaseFact drops o's reference. The last holder sends the removal of the elements while
// it holds the fact's lock. It leaves the wait for expiring elements to the Commit at the
// end of the session: a process that adds one of them meanwhile waits until it is gone.
// Networks may be nested, and the kernel keeps the widest range only: ReleaseFact queues
// ranges of remaining facts again that lay within a removed one. Only those: other facts
// may be released at the same time, under locks of their own. The last holder calls before,
// if given, first of all.
func ReleaseFact(ctx context.Context, s *record.Store, name string, o owner.Key, fw *nft.Conn, before ...func(record.Fact) error) error {
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
		unaccept(s, f, fw)
		return send(ctx, fw)
	})
}

// unaccept stops accepting sources that no other fact accepts on that bridge: networks that
// differ only in the operator's chain share the rules.
func unaccept(s *record.Store, f record.Fact, fw *nft.Conn) {
	if len(f.Accepts) == 0 {
		return
	}
	others := s.Others(f.Name)
	alone := slices.DeleteFunc(slices.Clone(f.Accepts), func(p netip.Prefix) bool {
		return slices.ContainsFunc(others, func(o record.Fact) bool {
			return o.Bridge == f.Bridge && o.Inside == f.Inside && slices.Contains(o.Accepts, p)
		})
	})
	if len(alone) > 0 {
		fw.Queue(iptnft.Unaccept(accepted(f, alone...), f.AdminChain))
		return
	}
	fw.Queue(iptnft.LeaveAdmin(f.AdminChain, func() bool { return AdminNamed(s, f.AdminChain, f.Name) }))
}

// AdminNamed reports whether an attachment, or a fact other than except, names an operator's
// chain. A record or fact that cannot be read counts as naming it.
func AdminNamed(s *record.Store, adminChain, except string) bool {
	records, torn, err := s.Scan("")
	_, facts, ferr := s.Facts()
	return err != nil || ferr != nil || len(torn) > 0 ||
		slices.ContainsFunc(records, func(r *record.Record) bool { return len(r.Accepts) > 0 && r.AdminChain == adminChain }) ||
		slices.ContainsFunc(facts, func(f record.Fact) bool {
			return len(f.Accepts) > 0 && f.AdminChain == adminChain && f.Name != except
		})
}

// send starts the removal. Where it is not known yet whether elements expire, this process
// must wait and delete those that do not: after a kill in between they would have no
// reference.
func send(ctx context.Context, fw *nft.Conn) error {
	if _, known := fw.ExpiryWorks(); known {
		return fw.Start(ctx)
	}
	return fw.Commit(ctx)
}

// nested returns elements of other facts that lie within a range of f. Facts without
// ranges, such as those of a single link, are skipped: there are as many as attachments.
func nested(s *record.Store, f record.Fact) (out []nft.Element) {
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

// Accepted are the addresses of one attachment whose traffic an iptables-nft FORWARD chain
// that drops must accept.
type Accepted struct {
	Addrs      []netip.Prefix // single addresses
	AdminChain string
	Comment    string // of the attachment: nft.Comment
	New        bool   // it has no rules yet, so an ADD need not look for them
}

// AcceptedOf returns the addresses of a record.
func AcceptedOf(rec *record.Record) Accepted {
	comment := nft.Comment(string(rec.Owner), rec.Network, rec.ContainerID, rec.IfName)
	return Accepted{Addrs: rec.Accepts, AdminChain: rec.AdminChain, Comment: comment}
}

func (a Accepted) sources() []iptnft.Source {
	sources := iptnft.On("", a.Addrs...)
	for i := range sources {
		sources[i].Owner, sources[i].New = a.Comment, a.New
	}
	return sources
}

func (a Accepted) extra() nft.Extra { return iptnft.Accept(a.sources(), a.AdminChain) }

// String names the accepted addresses.
func (a Accepted) String() string { return "host: firewall: " + a.extra().String() }

// Ensure queues the rules. There is nothing to undo: a request that fails
// discards the queue.
func (a Accepted) Ensure(_ context.Context, env *Env) (Undo, error) {
	env.NFT.Queue(a.extra())
	return nil, nil
}

// Diff returns what is lost, as a sentence.
func (a Accepted) Diff(ctx context.Context, env *Env) (string, error) {
	return Sentence(a.Lost(ctx, env))
}

// Lost looks the rules up.
func (a Accepted) Lost(_ context.Context, env *Env) (lost []Lost, err error) {
	if len(a.Addrs) > 0 {
		a.New = false
		err = lostAccept(env, a.sources(), a.AdminChain, &lost)
	}
	return lost, err
}

// AllAccepted reports whether the addresses of all records are accepted, in one look, for
// callers that would otherwise look for each record.
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
