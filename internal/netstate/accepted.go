// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"context"
	"net/netip"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nft/iptnft"
	"github.com/patchbay-net/patchbay/internal/record"
)

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
