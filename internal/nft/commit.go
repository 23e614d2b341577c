// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/statedir"
)

// expireAfter is the timeout a removal gives an element: the shortest there is.
const expireAfter = time.Millisecond

// plan is one transaction, decided by looking at the kernel.
type plan struct {
	tables  []state
	add     []Element
	delete  []Element
	expire  []Element
	waiting []Element // leaving already, by somebody else's removal
	extras  []func(*nftables.Conn) error

	conditions bool // extras make a network's conditions
}

func (p plan) empty() bool {
	return len(p.add)+len(p.delete)+len(p.expire)+len(p.extras) == 0
}

// Commit looks at the kernel and does what is queued in one transaction, the
// tables included when they are missing or older. It returns when everything
// is so, removals too (2-5 ms where they expire, a tick of the kernel's clock).
// When it fails nothing was changed. The queue is empty afterwards in either
// case.
//
// Errors: *TakenError, *NewerSchemaError, else the kernel's with the message
// it is about (errors.Is with a syscall.Errno works).
func (c *Conn) Commit(ctx context.Context) error {
	if err := c.Start(ctx); err != nil {
		return err
	}
	return c.settle()
}

// Start is Commit without the wait for removals to have happened, for a DEL
// that has a link to delete meanwhile. A Commit, with an empty queue, must
// follow before anything is given to somebody else.
func (c *Conn) Start(ctx context.Context) error {
	defer c.Discard()
	if !c.Pending() {
		return nil
	}
	if err := c.dial(); err != nil {
		return err
	}
	err := c.commit(ctx)
	if c.unlock != nil {
		err = errors.Join(err, c.unlock())
		c.unlock = nil
	}
	return err
}

// commit tries again when somebody else changed what was looked at, and looks
// when the socket overflowed (ENOBUFS): the transaction may have been done.
func (c *Conn) commit(ctx context.Context) error {
	const tries = 5
	for try := 1; ; try++ {
		err := c.try()
		if err == nil || try == tries || ctx.Err() != nil || !raced(err) {
			return c.explain(err)
		}
	}
}

// explain adds what a table without schema means: somebody else made it, or
// emptied our map.
func (c *Conn) explain(err error) error {
	if !errors.Is(err, syscall.EEXIST) {
		return err
	}
	for _, f := range [...]nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyBridge} {
		got, err2 := c.get([]lookup{schemaLookup(f)})
		if err2 != nil || got[0].found {
			continue
		}
		if table, err2 := c.Look(Ref{Family: f, Table: TableName}); err2 == nil && table[0].Found {
			return fmt.Errorf("table %[1]s %[2]s has no schema number, so it is not ours: run `nft delete table %[1]s %[2]s` and then `patchbay repair`: %[3]w",
				familyName(f), TableName, err)
		}
	}
	return err
}

// raced says that an error may be due to somebody else's transaction.
func raced(err error) bool {
	for _, e := range [...]error{syscall.EEXIST, syscall.ENOTEMPTY, syscall.ENOENT, syscall.EBUSY, syscall.ENOBUFS, syscall.EINTR} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (c *Conn) try() error {
	p, err := c.look()
	if err != nil {
		return err
	}
	if len(p.waiting) > 0 {
		if _, err := c.gone(p.waiting); err != nil {
			return err
		}
		return syscall.EINTR // look again
	}
	if p.empty() {
		return nil
	}
	if len(p.extras) > 0 && c.unlock == nil {
		if err := c.lock(); err != nil {
			return err
		}
		return syscall.EINTR // look again, alone
	}
	msgs, err := encode(p.encode)
	if err != nil {
		return err
	}
	if err := c.send(msgs); err != nil {
		return err
	}
	c.leaving = append(c.leaving, p.expire...)
	return nil
}

// encode queues the transaction: tables, removals, work beside elements (which
// makes maps to add to and drops maps to remove from), additions.
func (p plan) encode(enc *nftables.Conn) error {
	for _, t := range p.tables {
		if !t.present && !p.needs(t.family) {
			continue
		}
		if err := t.prepare(enc); err != nil {
			return err
		}
	}
	if err := errors.Join(bySet(p.delete, 0, enc.SetDeleteElements), bySet(p.expire, expireAfter, enc.SetAddElements)); err != nil {
		return err
	}
	for _, x := range p.extras {
		if err := x(enc); err != nil {
			return err
		}
	}
	return bySet(p.add, 0, enc.SetAddElements)
}

// needs says whether something is added to a table of ours, so that it must be
// there.
func (p plan) needs(f nftables.TableFamily) bool {
	for _, e := range p.add {
		if spec, _ := specOf(e.Set); spec.family == f {
			return true
		}
	}
	return p.conditions && f == nftables.TableFamilyINet
}

// bySet sends elements of one set together, up to what a message holds (64 KiB).
func bySet(elems []Element, timeout time.Duration, do func(*nftables.Set, []nftables.SetElement) error) error {
	const perMessage = 150
	for len(elems) > 0 {
		spec, _ := specOf(elems[0].Set)
		var group []nftables.SetElement
		var rest []Element
		for _, e := range elems {
			if e.Set != spec.name || len(group) == perMessage {
				rest = append(rest, e)
				continue
			}
			group = append(group, e.setElement(timeout))
		}
		if err := do(spec.set(), group); err != nil {
			return fmt.Errorf("elements of %s: %w", spec.name, err)
		}
		elems = rest
	}
	return nil
}

// lock keeps processes of ours from adding the same rule or chain at once,
// which the kernel would not refuse. Elements never need it.
func (c *Conn) lock() error {
	if c.runDir == "" {
		c.unlock = func() error { return nil }
		return nil
	}
	if err := statedir.Make(c.runDir); err != nil {
		return fmt.Errorf("lock nftables: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(c.runDir, "nft.lock"), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("lock nftables: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return errors.Join(fmt.Errorf("lock nftables: %w", err), f.Close())
	}
	c.unlock = f.Close
	return nil
}
