// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"

	"github.com/patchbay-net/patchbay/internal/durable"
)

// expireAfter is the timeout that a removal gives an element: the shortest that exists.
const expireAfter = time.Millisecond

// lockFile is in the run directory.
const lockFile = "nft.lock"

// plan is one transaction, decided by looking at the kernel.
type plan struct {
	tables  []state
	add     []Element
	delete  []Element
	expire  []Element
	lengths []setSpec // sets for one length that are missing
	waiting []Element // another process is removing these already
	extras  []func(*nftables.Conn) error

	conditions bool // extras make a network's conditions
}

func (p plan) empty() bool {
	return len(p.lengths)+len(p.add)+len(p.delete)+len(p.expire)+len(p.extras) == 0
}

// Commit reads the kernel's state and applies the queue in one transaction. It creates the
// tables when they are missing and upgrades older ones. It returns when every change is
// visible, removals too (2-5 ms where they expire, a tick of the kernel's clock). When it
// fails, nothing was changed. The queue is empty afterwards in either case.
//
// Errors: *TakenError, *NewerSchemaError, else the kernel's error with the message that it
// answers (errors.Is with a syscall.Errno works).
func (c *Conn) Commit(ctx context.Context) error {
	if err := c.Start(ctx); err != nil {
		return err
	}
	return c.settle()
}

// Start is Commit without the wait for removals, for a DEL that has a link to delete
// meanwhile. Call Commit with an empty queue before another owner may get what was removed.
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
		c.unlock()
		c.unlock = nil
	}
	return err
}

// commit reads and tries again when another process changed the kernel in between. It reads
// again when the socket overflowed (ENOBUFS): the transaction may have been done.
func (c *Conn) commit(ctx context.Context) error {
	const tries = 5
	for try := 1; ; try++ {
		err := c.try(ctx)
		if err == nil || try == tries || ctx.Err() != nil || !raced(err) {
			return c.explain(err)
		}
	}
}

// explain adds the cause when a table has no schema number: another program created the
// table, or emptied our map.
func (c *Conn) explain(err error) error {
	if !errors.Is(err, syscall.EEXIST) {
		return err
	}
	for _, f := range [...]nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyBridge} {
		got, err2 := c.get([]query{schemaLookup(f)})
		if err2 != nil || got[0].found {
			continue
		}
		if table, err2 := c.Look(Ref{Family: f, Table: TableName}); err2 == nil && table[0].Found {
			return fmt.Errorf("%w: %w", c.unnumbered(f), err)
		}
	}
	return err
}

// raced reports that an error may be due to another process's transaction.
func raced(err error) bool {
	for _, e := range [...]error{syscall.EEXIST, syscall.ENOTEMPTY, syscall.ENOENT, syscall.EBUSY, syscall.ENOBUFS, syscall.EINTR} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (c *Conn) try(ctx context.Context) error {
	p, err := c.look()
	if err != nil {
		return err
	}
	if len(p.waiting) > 0 {
		left, err := c.gone(p.waiting)
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%s was removed and still exists", left[0])
		}
		return errors.Join(err, syscall.EINTR) // read again
	}
	if p.empty() {
		return nil
	}
	if len(p.extras)+len(p.lengths) > 0 && c.unlock == nil {
		if err := c.alone(ctx, p); err != nil {
			return err
		}
		return syscall.EINTR // read again
	}
	msgs, err := p.messages()
	if err != nil {
		return err
	}
	if err := c.send(msgs); err != nil {
		return err
	}
	c.leaving = append(c.leaving, p.expire...)
	return nil
}

// messages is the transaction. The element of an attachment must be new (NLM_F_EXCL):
// without the flag the kernel would accept the element of another owner with the same key,
// added since we looked, in its place.
func (p plan) messages() ([]netlink.Message, error) {
	msgs, err := encode(p.encode)
	if err != nil {
		return nil, err
	}
	own, err := encode(func(enc *nftables.Conn) error { return bySet(p.added(true), 0, enc.SetAddElements) })
	for i := range own {
		own[i].Header.Flags |= netlink.Excl
	}
	return append(msgs, own...), err
}

// added returns the additions of attachments, or those of networks.
func (p plan) added(owned bool) (elems []Element) {
	for _, e := range p.add {
		if _, ok := OwnerOf(e.Comment); ok == owned {
			elems = append(elems, e)
		}
	}
	return elems
}

// encode queues all but the additions of attachments: tables, removals, work beside
// elements (which creates maps to add to and drops maps to remove from), additions.
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
	for _, s := range p.lengths {
		if err := enc.AddSet(s.set(), nil); err != nil {
			return fmt.Errorf("add set %s: %w", s.name, err)
		}
		s.addRule(enc)
	}
	for _, x := range p.extras {
		if err := x(enc); err != nil {
			return err
		}
	}
	return bySet(p.added(false), 0, enc.SetAddElements)
}

// needs reports whether something is added to our table of a family, so that the table must
// exist.
func (p plan) needs(f nftables.TableFamily) bool {
	for _, e := range p.add {
		if spec, _ := specOf(e.Set); spec.family == f {
			return true
		}
	}
	return p.conditions && f == nftables.TableFamilyINet
}

// bySet sends elements of one set together, as many as fit a message (64 KiB).
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

// alone takes the lock for a plan. A plan without extras waits for it a second at most, and
// then goes on without it: two processes may then both add the rule of a set for one prefix
// length, which changes nothing.
func (c *Conn) alone(ctx context.Context, p plan) error {
	if len(p.extras) > 0 {
		return c.lock(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if c.lock(ctx) != nil {
		c.unlock = func() {}
	}
	return nil
}

// lock keeps our processes from adding the same rule or chain at once, which the kernel
// would not refuse. Elements never need it, so a process that hangs with the lock blocks
// only processes that add a rule or a chain.
func (c *Conn) lock(ctx context.Context) error {
	if c.runDir == "" {
		c.unlock = func() {}
		return nil
	}
	if err := durable.MakeDir(c.runDir); err != nil {
		return fmt.Errorf("lock nftables: %w", err)
	}
	ctx, cancel := durable.WithLockLimit(ctx)
	defer cancel()
	unlock, err := durable.Lock(ctx, filepath.Join(c.runDir, lockFile))
	if err != nil {
		return fmt.Errorf("lock nftables: %w", err)
	}
	c.unlock = unlock
	return nil
}
