// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"context"
	"fmt"
	"slices"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nft/iptnft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
)

// Element is one element of the table `inet patchbay` that belongs to one
// attachment. Ensure queues it; the session commits the queue once.
type Element struct{ nft.Element }

// String is the nft command.
func (e Element) String() string { return "host: nft " + e.Element.String() }

// Ensure queues the element. There is nothing to undo: a request that fails
// discards the queue.
func (e Element) Ensure(_ context.Context, env *Env) (Undo, error) {
	env.NFT.Add(e.Element)
	return nil, nil
}

// Diff looks the element up by key.
func (e Element) Diff(_ context.Context, env *Env) (string, error) {
	return diffElement(env, e.Element)
}

func diffElement(env *Env, want nft.Element) (string, error) {
	got, ok, err := env.NFT.Get(want.Set, want.Key)
	switch {
	case err != nil:
		return "", err
	case !ok:
		return fmt.Sprintf("%s is missing from the firewall (patchbay repair puts it back)", want), nil
	case string(got.Data) != string(want.Data):
		return fmt.Sprintf("%s has other data in the firewall: %s", want, got), nil
	}
	return "", nil
}

// Fact is a shared firewall fact, held by one attachment.
type Fact struct {
	record.Fact
	Owner   owner.Key
	Records *record.Store
	Begin   func(*record.Fact) error // by the first one in (Hold); may be nil
}

// String lists the elements.
func (f Fact) String() string {
	s := "host: nft fact " + f.Name
	for _, e := range f.Elements {
		s += "; " + e.String()
	}
	for _, x := range extras(f.Fact) {
		s += "; " + x.String()
	}
	return s
}

// Ensure takes a reference before it queues the elements, so that the last
// holder of the same fact cannot remove them afterwards.
func (f Fact) Ensure(_ context.Context, env *Env) (Undo, error) {
	if err := f.Records.Hold(f.Fact, f.Owner, f.Begin); err != nil {
		return nil, err
	}
	QueueFact(env.NFT, f.Fact)
	return func(ctx context.Context) error { return ReleaseFact(ctx, f.Records, f.Name, f.Owner, env.NFT) }, nil
}

// Diff looks the elements up.
func (f Fact) Diff(_ context.Context, env *Env) (string, error) {
	for _, e := range f.Elements {
		if d, err := diffElement(env, e); err != nil || d != "" {
			return d, err
		}
	}
	for _, x := range extras(f.Fact) {
		if todo, err := x.Plan(env.NFT); err != nil || todo != nil {
			return fmt.Sprintf("the firewall does not %s (patchbay repair puts it back)", x), err
		}
	}
	return "", nil
}

// QueueFact queues what a fact stands for; `patchbay repair` uses it too.
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
		out = append(out, iptnft.Accept(f.Accepts, f.AdminChain))
	}
	return out
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
	return s.Release(name, o, func(f record.Fact) error {
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
		if len(f.Accepts) > 0 {
			fw.Queue(iptnft.Unaccept(f.Accepts, f.AdminChain))
		}
		return send(ctx, fw)
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
