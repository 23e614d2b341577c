// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package netstate describes the desired state of the network as a list of plain objects. A
// plugin compiles a State from its configuration and the addresses; this changes nothing in
// the kernel. Apply makes the objects in the order of the list. Diff returns where the kernel
// differs (CHECK). String prints the list (`patchbay explain`).
//
// The package does not resolve dependencies and does not plan. The author of a list chooses the
// order.
package netstate

import (
	"context"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
)

// Object is one thing that should exist in the kernel.
type Object interface {
	// String describes the object in one line, in the syntax of ip(8), nft(8) or tc(8).
	fmt.Stringer
	// Ensure creates or changes the object. undo reverts what Ensure changed. If Ensure changed
	// nothing, undo is nil. If Ensure fails, it has already reverted its own changes.
	Ensure(ctx context.Context, env *Env) (undo Undo, err error)
	// Diff says how the kernel differs from the object. If the kernel does not differ, Diff returns "".
	Diff(ctx context.Context, env *Env) (string, error)
}

// Undo reverts a change.
type Undo func(context.Context) error

// Where says in which namespace of the attachment an object is.
type Where int

// An attachment has two namespaces.
const (
	Host Where = iota
	Sandbox
)

// String returns the first word of an object's line.
func (w Where) String() string { return [...]string{"host", "sandbox"}[w] }

// Env holds what objects work with.
type Env struct {
	Host    *nl.Conn
	Sandbox *nl.Conn // nil if the namespace does not exist
	NFT     *nft.Conn

	// Records stores the facts that attachments share, and notes about what was made for a network.
	// Records may be nil if the state has no Fact. Without Records, no note is written.
	Records *record.Dir

	// Warn receives failures that do not fail the request, such as a sysctl that cannot be
	// written because /proc/sys is read-only.
	Warn func(error)

	// Conflict is called if another attachment already has the same element. If Conflict is nil, this
	// attachment takes the element from the other. Env warns of warning.
	Conflict func(*nft.ConflictError) (warning, err error)

	// First is called before an attachment becomes the first holder of a fact. First may be nil.
	First func(*record.Fact) error

	// HolderAdded is called when an attachment has become the holder of a fact. Whoever commits the fact's
	// elements does it in record.Dir.WhileHolding. HolderAdded may be nil.
	HolderAdded func(fact string, o owner.Key)

	// Say is called with the line of each object that State.Diff compares, marked if the kernel
	// differs. If it is nil, Diff prints nothing.
	Say func(line string)

	// Mended is called with what Diff restored. If it is nil, Diff changes nothing.
	Mended func(did string)

	// AddTap creates a tap in a process with another security label. If it is nil, this process
	// creates the tap.
	AddTap func(*nl.Conn, nl.Tap) error

	links [2]map[string]netlink.Link
}

// Conn returns the socket in a namespace.
func (e *Env) Conn(w Where) *nl.Conn {
	if w == Host {
		return e.Host
	}
	return e.Sandbox
}

// Link returns a link. Link reads each link from the kernel only once.
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

// Remember stores a link that was just made or read, so that Link does not read it again.
func (e *Env) Remember(w Where, l netlink.Link) {
	if e.links[w] == nil {
		e.links[w] = make(map[string]netlink.Link)
	}
	e.links[w][l.Attrs().Name] = l
}

// Forget drops a stored link that has changed.
func (e *Env) Forget(w Where, name string) { delete(e.links[w], name) }

// State is an ordered list of objects.
type State []Object

// String prints one object per line.
func (s State) String() string {
	var b strings.Builder
	for _, o := range s {
		b.WriteString(o.String())
		b.WriteByte('\n')
	}
	return b.String()
}

// Applier holds what Apply needs.
type Applier struct {
	Env  *Env
	Undo func(func(context.Context) error) // stores an undo function
	Step func(name string) error           // called before each object; may be nil
}

// Apply ensures every object in order and stops at the first error. Then the caller runs the
// stored undo functions.
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
