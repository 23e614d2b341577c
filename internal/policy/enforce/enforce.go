// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// ErrChanged means that another program changed or deleted the policies in the kernel. The next Load
// reads the kernel's state, and changes only differences.
var ErrChanged = errors.New("the policies in the kernel were changed by another program")

// Options are choices of an Enforcer.
type Options struct {
	// KeepConnections leaves established connections alone when policies change. Otherwise Load ends
	// those that the new program denies.
	KeepConnections bool

	// CutLater leaves it to the caller to end them: DrainCut returns what Load has noted.
	CutLater bool

	Log *Log // nil: denied packets are only counted

	// Tell is the group of NFLOG to which each dropped flow is told, within limits (nft.Teller); 0: to none. The prefixes
	// are those of Prefix, and nft.PrefixForged.
	Tell uint16

	// Untold gets the error if the kernel cannot tell, because it lacks the module nfnetlink_log, and nil if it can again.
	// Packets are dropped and counted meanwhile. Untold may be nil.
	Untold func(error)

	// Committed gets the time of each transaction, with its wait for those of other programs. nil: it is
	// not measured.
	Committed func(time.Duration)
}

// Enforcer keeps a program in the kernel. Only one goroutine may use it at a time, with its thread
// in the network namespace of the node.
type Enforcer struct {
	fw       *nft.Conn
	opts     Options
	loaded   *policy.Program // nil: not known
	revision uint16
	exists   bool // the kernel has a revision
	base     bool // the kernel has the base chains
	attached []Closure
	mute     bool // the kernel cannot tell
	muted    bool // Untold has said so
	forged   bool // forged packets are told, if anything is
	cut      Cut  // what still has to be cut
}

// New returns an Enforcer that uses this connection. It changes nothing.
func New(fw *nft.Conn, opts Options) *Enforcer { return &Enforcer{fw: fw, opts: opts} }

// Load makes the kernel enforce a program. The first Load, and each after an error, reads what the
// kernel has, so a restart changes nothing that is right. A packet is judged either by the old program
// or by the new one, except in the moment between its two base chains.
//
// owners has the addresses of this node's attachments for which the program has the pods, each with its
// owner. After the change, Load opens those of them that an ADD had closed. Others stay closed.
//
// If Load fails, the kernel has the old program, or the new one and objects that no packet meets,
// connections that the new one denies, or pods that are still closed. The next Load does the rest.
// The errors are those of nft.Conn.Commit, and ErrChanged.
func (e *Enforcer) Load(ctx context.Context, p *policy.Program, owners map[netip.Addr]owner.Key) error {
	const tries = 5 // an ADD may have made the base chains in the meantime
	for try := 1; ; try++ {
		err := e.load(ctx, p, owners)
		if try == 1 && errors.Is(err, unix.ENOENT) || e.hush(err) { // the first time, another program may have deleted something
			continue
		}
		if err == nil || try == tries || !errors.Is(err, ErrChanged) {
			return err
		}
	}
}

func (e *Enforcer) load(ctx context.Context, p *policy.Program, owners map[netip.Addr]owner.Key) error {
	unrestored := e.restore(ctx) // told last: a table that cannot be restored must not keep new policies waiting
	before, err := e.before()
	if err != nil {
		return fmt.Errorf("load network policies: %w", err)
	}
	if err := e.attend(ctx, p, before.base || anyPoliced(p)); err != nil {
		return err
	}
	was := e.loaded
	e.loaded = nil
	var same func(string) bool
	if was != nil {
		same = sameSets(was, p)
	}
	after := e.wanted(p, before.base)
	changes, err := planOf(before, after, same)
	if err != nil {
		return fmt.Errorf("load network policies: %w", err)
	}
	if !e.exists && len(before.chains) > 0 && len(changes.switchOver) == 0 {
		changes.switchOver = []step{{do: func(*nftables.Conn) error { return nil }}} // only the revision is missing
	}
	if err := e.leave(before, p); err != nil {
		return fmt.Errorf("load network policies: %w", err)
	}
	if err := e.apply(ctx, changes); err != nil {
		return fmt.Errorf("load network policies: %w", err)
	}
	e.base, e.cut.program = before.base || anyPoliced(p), p
	e.cut.renewed = e.cut.renewed || len(changes.switchOver) > 0 && !e.opts.KeepConnections
	if err := e.release(ctx, owners, anyPoliced(p)); err != nil {
		return fmt.Errorf("open pods that network policies judge now: %w", err)
	}
	if err := e.openPorts(ctx, owners); err != nil {
		return fmt.Errorf("open ports of bridges that no network policy isolates: %w", err)
	}
	switch {
	case was == nil: // it is not known what the kernel had before, as after a restart
		e.owe(pods(p))
	case len(changes.switchOver) > 0:
		e.owe(after.concerned(changes.touched))
	}
	if err := e.cutNow(); err != nil {
		return fmt.Errorf("end connections that network policies deny: %w", err)
	}
	if unrestored != nil {
		return unrestored
	}
	e.loaded = p
	return nil
}

// restore does what repair does for the rules of our tables, if it is not known what the kernel has: a dormant table, or a
// rule that another program inserted, lets pass what policies deny.
func (e *Enforcer) restore(ctx context.Context) error {
	if e.loaded != nil {
		return nil
	}
	if _, err := e.fw.Restore(ctx); err != nil {
		return fmt.Errorf("restore the rules that another program changed: %w", err)
	}
	return nil
}

// cutNow ends the connections that have to end, unless the caller does.
func (e *Enforcer) cutNow() error {
	if e.opts.CutLater {
		return nil
	}
	c := e.DrainCut()
	if c == nil {
		return nil
	}
	err := c.Do(func(*Cut) {})
	if err != nil {
		e.GiveBack(c)
	}
	return err
}

// Differences returns what Load would do if the kernel should enforce a program, one line for each
// change. It reads what the kernel has, and changes nothing.
func (e *Enforcer) Differences(p *policy.Program, owners map[netip.Addr]owner.Key) ([]string, error) {
	have, err := read(e.fw)
	if err != nil {
		return nil, fmt.Errorf("compare network policies: %w", err)
	}
	todo, err := planOf(have, e.wanted(p, have.base), nil)
	if err != nil {
		return nil, fmt.Errorf("compare network policies: %w", err)
	}
	steps := slices.Concat(todo.prepare, todo.switchOver, todo.clean)
	if have.base || anyPoliced(p) {
		last, err := e.released(owners, anyPoliced(p))
		if err != nil {
			return nil, fmt.Errorf("compare network policies: %w", err)
		}
		steps = append(steps, last...)
	}
	lines, err := e.unattended(p)
	if err != nil {
		return nil, fmt.Errorf("compare network policies: %w", err)
	}
	for _, s := range steps {
		lines = append(lines, s.what)
	}
	return lines, nil
}

// Forget makes the next Load read what the kernel has, as the first one does. So a program that runs
// for a long time finds what others changed in the table.
func (e *Enforcer) Forget() { e.loaded, e.mute = nil, false }

// Check returns ErrChanged if the policies in the kernel are not those that this Enforcer loaded, as
// after `nft flush ruleset`. It looks only at the revision, which takes 0.1 ms. Changes that another
// program makes to single rules are found by the Load after Forget.
func (e *Enforcer) Check() error {
	n, ok, err := e.fw.ReadPolicyRevision()
	if err != nil {
		return fmt.Errorf("check network policies: %w", err)
	}
	if e.loaded != nil && (ok != e.exists || n != e.revision) {
		return ErrChanged
	}
	return nil
}

// before returns the state from which Load starts.
func (e *Enforcer) before() (*state, error) {
	if e.loaded != nil {
		switch err := e.Check(); {
		case err == nil:
			return &e.wanted(e.loaded, e.base).state, nil
		case !errors.Is(err, ErrChanged):
			return nil, err
		}
	}
	e.loaded = nil
	var err error
	if e.revision, e.exists, err = e.fw.ReadPolicyRevision(); err != nil {
		return nil, err
	}
	return read(e.fw)
}

// apply sends a plan in transactions.
func (e *Enforcer) apply(ctx context.Context, p plan) error {
	for _, list := range [][][]step{batches(p.prepare), {p.switchOver}, batches(p.clean)} {
		for _, steps := range list {
			if len(steps) == 0 {
				continue
			}
			if err := e.transact(ctx, steps); err != nil {
				return err
			}
		}
	}
	return nil
}

// batches splits steps into transactions of fewer than 200 messages, unless one step has more. A
// large transaction keeps those of other processes waiting.
func batches(steps []step) (out [][]step) {
	const most = 150
	size := 0
	for _, s := range steps {
		if len(out) == 0 || size+s.messages > most {
			out, size = append(out, nil), 0
		}
		out[len(out)-1] = append(out[len(out)-1], s)
		size += s.messages
	}
	return out
}

// transact sends one transaction, which also changes the revision.
func (e *Enforcer) transact(ctx context.Context, steps []step) error {
	t := e.transaction(steps)
	e.fw.Queue(t)
	began := time.Now()
	if err := e.fw.Commit(ctx); err != nil {
		return err
	}
	e.committed(began)
	e.revision, e.exists = t.next, true
	return nil
}

// committed reports the time of a transaction.
func (e *Enforcer) committed(began time.Time) {
	if e.opts.Committed != nil {
		e.opts.Committed(time.Since(began))
	}
}

// revise changes the revision in a transaction, together with what do does.
func revise(enc *nftables.Conn, exists bool, was, next uint16, do func() error) error {
	set, element := nft.PolicyRevision(next)
	if exists {
		_, old := nft.PolicyRevision(was)
		if err := enc.SetDeleteElements(set, []nftables.SetElement{old}); err != nil {
			return err
		}
	} else if err := enc.AddSet(set, nil); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return enc.SetAddElements(set, []nftables.SetElement{element})
}

// transaction returns the next transaction.
func (e *Enforcer) transaction(steps []step) *transaction {
	t := &transaction{Enforcer: e, steps: steps, next: e.revision + 1}
	if !e.exists {
		t.next = uint16(rand.Uint32()) // after a flush, no other program continues our numbers by chance
	}
	return t
}

// transaction is the work of one transaction.
type transaction struct {
	*Enforcer
	steps []step
	next  uint16
}

// String describes the work in errors.
func (t *transaction) String() string { return "change network policies" }

// Needs reports that the table must exist.
func (t *transaction) Needs() bool { return true }

// Plan returns the work. It returns none if the kernel has done the work already, because the kernel's
// answer can get lost (ENOBUFS).
func (t *transaction) Plan(c *nft.Conn) (func(*nftables.Conn) error, error) {
	n, ok, err := c.ReadPolicyRevision()
	switch {
	case err != nil:
		return nil, err
	case ok && n == t.next:
		return nil, nil
	case ok != t.exists || n != t.revision:
		return nil, ErrChanged
	}
	return t.encode, nil
}

func (t *transaction) encode(enc *nftables.Conn) error {
	return revise(enc, t.exists, t.revision, t.next, func() error { return doAll(enc, t.steps) })
}

func doAll(enc *nftables.Conn, steps []step) error {
	for _, s := range steps {
		if err := s.do(enc); err != nil {
			return err
		}
	}
	return nil
}
