// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package enforce loads a program of Services (services.Program) into the kernel, in the nftables table
// `inet patchbay_services`. internal/nft/services.go lists its sets, and internal/nft/servicerules.go its chains.
//
// A program comes from the agent:
//
//	e := enforce.New(fw, enforce.Options{})
//	p, err := e.Compile(state)            // over what the kernel has
//	err = e.Load(ctx, p)                  // if nothing differs, without a transaction
//	err = e.Apply(ctx, p, p.Update(state, names...))
//	err = e.Settle(ctx)                   // a moment later
//
// A change is sent in transactions of at most 300 kB, because a larger one keeps those of other programs waiting, and each
// element of it is an event for everybody who listens. No step of a change is cut, so a packet meets a frontend with its old
// endpoints or with its new ones. Each transaction replaces the table's revision. If the kernel has another one, as after
// `nft flush ruleset`, it refuses the transaction, and the next Load reads what the kernel has.
//
// Sets of a class, of a timeout of affinity and of a length of source ranges exist while a Service needs them, with their
// rules. The transaction of the first element makes them. Load removes those that are not needed any more.
//
// Established connections meet no rule. After a change, the flows of UDP that a frontend must not have any more
// are deleted from connection tracking, and what clients with affinity remember of endpoints that they must not reach.
// Connections of TCP go on, also to an endpoint that is in no slot any more.
//
// Requires Linux 5.10. nft 1.0.6 prints all objects and loads them again, except rules for affinity of IPv6: it prints them, and
// stops when it should load them.
package enforce
