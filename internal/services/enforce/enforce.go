// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/services"
)

// ErrChanged means that another program changed or deleted the Services in the kernel. Load then reads what the kernel has, and
// changes what differs.
var ErrChanged error = nft.ServicesChangedError{}

// Options are choices of an Enforcer.
type Options struct {
	// Committed gets the time of each transaction, with its wait for those of other programs. nil: it is not measured.
	Committed func(time.Duration)
}

// Enforcer keeps a program in the kernel. Only one goroutine may use it at a time, with its thread in the network namespace of
// the node.
type Enforcer struct {
	fw   *nft.Conn
	opts Options

	loaded   *services.Program // nil: it is not known what the kernel has
	found    *found            // what Compile has read, for the next Load
	revision nft.ServicesRevision
	layout   nft.ServiceLayout
	sets     map[setID]bool // sets that the layout is known to have
	owed     owed
}

// New returns an Enforcer that uses this connection. It changes nothing.
func New(fw *nft.Conn, opts Options) *Enforcer { return &Enforcer{fw: fw, opts: opts} }

// Compile compiles a program over what the kernel has: endpoints keep their slots. It changes nothing.
func (e *Enforcer) Compile(s *services.State) (*services.Program, error) {
	found, err := read(e.fw)
	if err != nil {
		return nil, fmt.Errorf("read Services of the kernel: %w", err)
	}
	e.found = found
	return services.CompileOver(s, found.table), nil
}

// Load makes a program what the kernel enforces. The first Load, and each after an error, Forget or ErrChanged, reads what the kernel
// has, so a restart changes nothing that is right. The change of a program that was updated goes to Apply, because Load believes that the
// kernel has what it has loaded.
//
// If Load fails, some frontends are as the program has them, and the others as they were before. The next Load does the rest.
func (e *Enforcer) Load(ctx context.Context, p *services.Program) error {
	const tries = 5
	for try := 1; ; try++ {
		err := e.load(ctx, p)
		if err == nil || try == tries || !errors.Is(err, ErrChanged) {
			return err
		}
	}
}

func (e *Enforcer) load(ctx context.Context, p *services.Program) error {
	if e.loaded == p && e.Check() == nil {
		return e.pay()
	}
	have, err := e.before()
	if err != nil {
		return fmt.Errorf("load Services: %w", err)
	}
	e.loaded, e.owed.retired = nil, nil // what was postponed is in what the kernel has
	if err := e.prepare(ctx, have, p); err != nil {
		return fmt.Errorf("load Services: %w", err)
	}
	change := p.From(have.table)
	if err := e.steps(ctx, e.postpone(change.Steps)); err != nil {
		return fmt.Errorf("load Services: %w", err)
	}
	if err := e.shrink(ctx, p); err != nil {
		return fmt.Errorf("load Services: %w", err)
	}
	e.loaded = p
	e.owe(change, true)
	return e.pay()
}

// before returns what the kernel has. What Compile has read is used if the revision is still the same.
func (e *Enforcer) before() (*found, error) {
	have := e.found
	e.found = nil
	if have != nil {
		if now, err := e.fw.ReadServicesRevision(); err != nil || now == have.state.Revision {
			return have, err
		}
	}
	return read(e.fw)
}

// prepare makes the table, or mends its sets and chains. The sets that it has stay until shrink.
func (e *Enforcer) prepare(ctx context.Context, have *found, p *services.Program) error {
	e.revision, e.sets = have.state.Revision, make(map[setID]bool)
	layout, err := nft.LayoutOfServices(p.Sets()...)
	if err != nil {
		return err
	}
	work := &nft.ServicesWork{Anew: have.state.Exists, Grow: layout}
	if have.usable {
		if layout, err = layout.With(have.sets...); err != nil {
			return err
		}
		mend, err := e.fw.MendServices(have.state, layout)
		if e.layout = layout; mend == nil {
			return err
		}
		work = &nft.ServicesWork{Mend: mend}
	}
	e.layout = layout
	return e.transact(ctx, work)
}

// shrink removes sets that the program does not need, with their rules: each costs the first packet of a connection a lookup.
func (e *Enforcer) shrink(ctx context.Context, p *services.Program) error {
	layout, err := nft.LayoutOfServices(p.Sets()...)
	if err != nil || layout.Equal(e.layout) {
		return err
	}
	state, err := e.fw.ReadServices()
	if err != nil {
		return err
	}
	mend, err := e.fw.MendServices(state, layout)
	if err != nil {
		return err
	}
	e.layout, e.sets = layout, make(map[setID]bool)
	if mend == nil {
		return nil
	}
	return e.transact(ctx, &nft.ServicesWork{Mend: mend})
}

// Apply makes the kernel do what a change of the program says. The kernel must have what the program was before; if it may not have,
// Apply does what Load does.
func (e *Enforcer) Apply(ctx context.Context, p *services.Program, c services.Change) error {
	if e.loaded == nil {
		return e.Load(ctx, p)
	}
	if err := e.change(ctx, p, e.postpone(c.Steps)); err != nil {
		return err
	}
	e.owe(c, false)
	return e.pay()
}

// change sends steps that make of the program in the kernel this one.
func (e *Enforcer) change(ctx context.Context, p *services.Program, steps []services.Step) error {
	e.loaded = nil
	err := e.steps(ctx, steps)
	if errors.Is(err, ErrChanged) {
		return e.Load(ctx, p)
	}
	if err != nil {
		return fmt.Errorf("change Services: %w", err)
	}
	e.loaded = p
	return nil
}

// Forget makes the next Load read what the kernel has, as the first one does. So a program that runs for a long time finds what
// others changed in the table.
func (e *Enforcer) Forget() { e.loaded = nil }

// Check returns ErrChanged if the Services in the kernel are not those that this Enforcer loaded, as after `nft flush ruleset`. It
// looks only at the revision. Changes that another program makes to single rules or elements are found by the Load after Forget.
func (e *Enforcer) Check() error {
	now, err := e.fw.ReadServicesRevision()
	if err != nil {
		return fmt.Errorf("check Services: %w", err)
	}
	if e.loaded != nil && now != e.revision {
		return ErrChanged
	}
	return nil
}

// Remove deletes the table. Connections that it has translated go on.
func (e *Enforcer) Remove(ctx context.Context) error {
	e.loaded, e.owed = nil, owed{}
	e.fw.Queue(nft.RemoveServices())
	return e.fw.Commit(ctx)
}

// transact sends one transaction, which also changes the revision.
func (e *Enforcer) transact(ctx context.Context, w *nft.ServicesWork) error {
	w.Was, w.Next = e.revision, e.revision.Next()
	if !e.revision.Exists {
		w.Next.Number = uint16(rand.Uint32()) // after a flush, no other program continues our numbers by chance
	}
	e.fw.Queue(w)
	began := time.Now()
	if err := e.fw.Commit(ctx); err != nil {
		return err
	}
	if e.opts.Committed != nil {
		e.opts.Committed(time.Since(began))
	}
	e.revision = w.Next
	return nil
}
