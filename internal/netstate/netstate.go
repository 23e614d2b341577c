// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package netstate is the desired state of the network as a list of plain
// objects. A plugin compiles a State from its configuration and the addresses
// without touching anything; Apply makes it so in the list's order, Diff tells
// where the kernel differs (CHECK), String prints it (`patchbay explain`).
//
// There is no dependency solver and no planner: the order is the author's.
package netstate

import (
	"context"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nl"
)

// Object is one thing that should exist.
type Object interface {
	// String is one line a person reads, in the words of ip(8), nft(8), tc(8).
	fmt.Stringer
	// Ensure makes the object so. undo takes back what Ensure changed and is
	// nil when it changed nothing. When Ensure fails, it has undone itself.
	Ensure(ctx context.Context, env *Env) (undo Undo, err error)
	// Diff says in words where the kernel differs; empty when it does not.
	Diff(ctx context.Context, env *Env) (string, error)
}

// Undo takes a change back.
type Undo func(context.Context) error

// Where is the namespace an object lives in.
type Where int

// The two namespaces of an attachment.
const (
	Host Where = iota
	Sandbox
)

// String is the prefix of a line.
func (w Where) String() string { return [...]string{"host", "sandbox"}[w] }

// Env is what objects act on.
type Env struct {
	Host    *nl.Conn
	Sandbox *nl.Conn // nil when there is no namespace
	NFT     *nft.Conn

	// Warn hears of what could not be done and is survived, such as a sysctl
	// on a read-only /proc/sys.
	Warn func(error)

	// Taken is asked when another attachment has an element; nil takes it over.
	Taken func(*nft.TakenError) error

	links [2]map[string]netlink.Link
}

// Conn returns the socket of a namespace.
func (e *Env) Conn(w Where) *nl.Conn {
	if w == Host {
		return e.Host
	}
	return e.Sandbox
}

// Link returns a link, asking the kernel once.
func (e *Env) Link(w Where, name string) (netlink.Link, error) {
	if l, ok := e.links[w][name]; ok {
		return l, nil
	}
	l, err := e.Conn(w).Link(name)
	if err != nil {
		return nil, err
	}
	e.Remember(w, l)
	return l, nil
}

// Remember caches a link that was just made or read.
func (e *Env) Remember(w Where, l netlink.Link) {
	if e.links[w] == nil {
		e.links[w] = make(map[string]netlink.Link)
	}
	e.links[w][l.Attrs().Name] = l
}

// Forget drops a cached link that changed.
func (e *Env) Forget(w Where, name string) { delete(e.links[w], name) }

// State is an ordered list of objects.
type State []Object

// String prints one object a line.
func (s State) String() string {
	var b strings.Builder
	for _, o := range s {
		b.WriteString(o.String())
		b.WriteByte('\n')
	}
	return b.String()
}

// Applier carries Apply's surroundings.
type Applier struct {
	Env  *Env
	Undo func(func(context.Context) error) // where undos go
	Step func(name string) error           // asked before each object; may be nil
}

// Apply ensures every object in order and stops at the first error, leaving
// the undoing to the owner of the undo stack.
func (a *Applier) Apply(ctx context.Context, s State) error {
	for _, o := range s {
		if err := ctx.Err(); err != nil {
			return err
		}
		if a.Step != nil {
			if err := a.Step(o.String()); err != nil {
				return err
			}
		}
		undo, err := o.Ensure(ctx, a.Env)
		if err != nil {
			return err
		}
		if undo != nil {
			a.Undo(undo)
		}
	}
	return nil
}
