// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package netstate is the desired state of the network as a list of plain objects. A plugin
// compiles a State from its configuration and the addresses without touching anything;
// Apply ensures the objects in the list's order, Diff returns where the kernel differs
// (CHECK), String prints the list (`patchbay explain`).
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
	"github.com/patchbay-net/patchbay/internal/record"
)

// Object is one thing that should exist.
type Object interface {
	// String is one line for people, in the syntax of ip(8), nft(8), tc(8).
	fmt.Stringer
	// Ensure creates or changes the object. undo reverts what Ensure changed and is nil
	// when it changed nothing. An Ensure that fails has reverted its own changes.
	Ensure(ctx context.Context, env *Env) (undo Undo, err error)
	// Diff describes where the kernel differs; empty when it does not.
	Diff(ctx context.Context, env *Env) (string, error)
}

// Undo reverts a change.
type Undo func(context.Context) error

// Where is the namespace of an object.
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

	// Records has the facts that attachments share, and notes what is made for a network.
	// It may be nil where no Fact is ensured: then nothing is noted.
	Records *record.Store

	// Warn receives failures that do not end the request, such as a sysctl on a read-only
	// /proc/sys.
	Warn func(error)

	// Taken is called when another attachment has an element; nil takes it over.
	Taken func(*nft.TakenError) error

	// First is called before an attachment becomes the first holder of a fact; may be nil.
	First func(*record.Fact) error

	// AddTap creates a tap in a process with another security label; nil creates it here.
	AddTap func(*nl.Conn, nl.Tap) error

	links [2]map[string]netlink.Link
}

// Conn returns the socket of a namespace.
func (e *Env) Conn(w Where) *nl.Conn {
	if w == Host {
		return e.Host
	}
	return e.Sandbox
}

// Link returns a link, and reads it from the kernel only once.
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

// Applier is what Apply needs.
type Applier struct {
	Env  *Env
	Undo func(func(context.Context) error) // pushes an undo
	Step func(name string) error           // called before each object; may be nil
}

// Apply ensures every object in order and stops at the first error. The owner of the undo
// stack undoes the rest.
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
