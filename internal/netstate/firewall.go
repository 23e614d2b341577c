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
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
)

// Element is one element of the table `inet patchbay` that belongs to one
// attachment. Ensure queues it; the session commits the queue once.
type Element struct{ nft.Element }

// String is a sentence; its elements are in the record.
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

// Diff is what is lost, as a sentence.
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
	Owner   owner.Key
	Records *record.Store
	Begin   func(*record.Fact) error // by the first one in (Hold); may be nil
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

// Ensure takes a reference before it queues the elements, so that the last
// holder of the same fact cannot remove them afterwards. A reference that an
// earlier ADD took stays when this one fails.
func (f Fact) Ensure(ctx context.Context, env *Env) (Undo, error) {
	held := f.Records.Holds(f.Name, f.Owner)
	if err := f.Records.Hold(ctx, f.Fact, f.Owner, f.Begin); err != nil {
		return nil, err
	}
	QueueFact(env.NFT, f.Fact)
	if held {
		return nil, nil
	}
	return func(ctx context.Context) error { return ReleaseFact(ctx, f.Records, f.Name, f.Owner, env.NFT) }, nil
}

// Diff is what is lost, as a sentence.
func (f Fact) Diff(ctx context.Context, env *Env) (string, error) { return Sentence(f.Lost(ctx, env)) }

// Lost looks the elements up, and what the fact stands for beside them.
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

// lostAccept is about sources that are not accepted. Rules of others may let them
// through; where that cannot be decided doctor warns.
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

// RestoreFact is QueueFact that mends what is there and was changed, for repair.
func RestoreFact(fw *nft.Conn, f record.Fact) {
	if f.Conditions != nil {
		fw.Queue(f.Conditions.Restore())
		f.Conditions = nil
	}
	QueueFact(fw, f)
}

// QueueFact queues what a fact stands for.
func QueueFact(fw *nft.Conn, f record.Fact) {
	for _, x := range extras(f) {
		fw.Queue(x)
	}
	fw.Add(f.Elements...)
}

// extras is what a fact stands for beside elements.
func extras(f record.Fact) (out []nft.Extra) {
	if f.Conditions != nil {
		out = append(out, f.Conditions.Ensure())
	}
	if len(f.Accepts) > 0 {
		out = append(out, iptnft.Accept(accepted(f, f.Accepts...), f.AdminChain))
	}
	return out
}

// accepted are some subnets of a fact.
func accepted(f record.Fact, subnets ...netip.Prefix) []iptnft.Source {
	list := iptnft.On(f.Bridge, subnets...)
	for i := range list {
		list[i].Inside = f.Inside
	}
	return list
}

// ReleaseFact drops o's reference; the last one out sends the removal of the
// elements while it holds the fact's lock. The wait for those that expire is
// left to the Commit at the end of the session: whoever adds one of them in the
// meantime waits for it to go first. Networks may be nested, and the kernel
// keeps the widest range only: those of the facts that stay are queued again
// where they lay within one that goes. Only those: other facts may be going as
// well, under locks of their own. The last one out calls before, if any, first
// of all.
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

// unaccept stops accepting what no other fact accepts on that bridge: networks that
// differ in the operator's chain alone share the rules.
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

// AdminNamed says whether an attachment, or a fact but the one called except, names
// an operator's chain. What cannot be read may.
func AdminNamed(s *record.Store, adminChain, except string) bool {
	records, torn, err := s.Scan("")
	_, facts, ferr := s.Facts()
	return err != nil || ferr != nil || len(torn) > 0 ||
		slices.ContainsFunc(records, func(r *record.Record) bool { return len(r.Accepts) > 0 && r.AdminChain == adminChain }) ||
		slices.ContainsFunc(facts, func(f record.Fact) bool {
			return len(f.Accepts) > 0 && f.AdminChain == adminChain && f.Name != except
		})
}

// send starts the removal. Where it is not known yet whether elements expire,
// somebody must stay to delete those that do not: a kill in between would leave
// them without a reference.
func send(ctx context.Context, fw *nft.Conn) error {
	if _, known := fw.ExpiryWorks(); known {
		return fw.Start(ctx)
	}
	return fw.Commit(ctx)
}

// nested are elements of other facts that lie within a range of f. Facts without
// ranges, such as those of a single link, have none to look for: as many of them
// stand as attachments.
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
