// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/durable"
)

// expireAfter is the timeout that a removal gives an element. It is the shortest timeout that
// the kernel accepts.
const expireAfter = time.Millisecond

// lockFile is the name of the lock file in the run directory.
const lockFile = "nft.lock"

// plan is the content of one transaction, decided after a look at the kernel's state.
type plan struct {
	tables  []state
	add     []Element
	delete  []Element
	expire  []Element
	demand  []setSpec // missing sets on demand
	waiting []Element // elements that another process is already removing
	extras  []func(*nftables.Conn) error
	bulks   []*Bulk

	tenants bool // the extras need the table inet patchbay
	heavy   bool // the extras need the lock

	expires    bool          // removals may try to expire
	timeout    time.Duration // of expire
	generation []byte        // generation of the ruleset for which the plan was made; nil: any (Guarded)
}

func (p plan) empty() bool {
	return len(p.demand)+len(p.add)+len(p.delete)+len(p.expire)+len(p.extras) == 0
}

// Commit reads the kernel's state and applies the queue in one transaction. Commit creates
// missing tables and upgrades older ones. Commit returns when every change is visible. A
// removal by expiry becomes visible after a tick of the kernel's clock (2-5 ms). If Commit
// fails, it has changed nothing, unless a Lasting extra failed afterwards. In both cases the queue is empty afterwards.
//
// The error is *ConflictError, *NewerSchemaError, or the kernel's error together with the message
// that caused it (errors.Is with a syscall.Errno works).
func (c *Conn) Commit(ctx context.Context) error {
	if err := c.Start(ctx); err != nil {
		return err
	}
	return c.settle()
}

// Start works like Commit, but does not wait for removals. Start is for a DEL that deletes a link in the meantime.
// Before another owner may get the keys of the removed elements, call Commit with an empty queue.
func (c *Conn) Start(ctx context.Context) error {
	defer c.Discard()
	if !c.Pending() {
		return nil
	}
	if err := c.dial(); err != nil {
		return err
	}
	defer c.release()
	return c.commit(ctx)
}

// release releases the lock, if commit has locked it.
func (c *Conn) release() {
	if c.unlock != nil {
		c.unlock()
		c.unlock = nil
	}
}

// commit tries a transaction. If another process changed the kernel's state in between, it
// reads the state and tries again. commit does the same after an overflow of the socket
// (ENOBUFS), because the kernel may have applied the transaction.
//
// The kernel refuses Guarded work (ERESTART) after any other transaction. While pods come and go, another transaction
// may come during each try, so there are more tries.
func (c *Conn) commit(ctx context.Context) error {
	const tries, guarded = 8, 40
	for try := 1; ; try++ {
		err := c.try(ctx)
		if err == nil {
			err = c.lasts()
		}
		last := try >= guarded || try >= tries && !errors.Is(err, syscall.ERESTART)
		if err == nil || last || ctx.Err() != nil || !raced(err) {
			return c.explain(err)
		}
		clock.Sleep(ctx, time.Duration(min(try, tries)-1)*time.Millisecond) // for a busy machine: the other process may wait for a CPU
	}
}

// lasts returns EINTR, to try again, if a Lasting extra lacks something after the transaction.
func (c *Conn) lasts() error {
	for _, x := range c.extras {
		if _, ok := x.(Lasting); !ok {
			continue
		}
		if do, err := x.Plan(c); err != nil {
			return fmt.Errorf("%s: %w", x, err)
		} else if do != nil {
			return syscall.EINTR
		}
	}
	return nil
}

// explain adds the reason to err if a table has no schema number: another program created the
// table, or deleted the elements of our map.
func (c *Conn) explain(err error) error {
	if !errors.Is(err, syscall.EEXIST) {
		return err
	}
	for _, f := range [...]nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyBridge} {
		got, err2 := c.get([]query{schemaLookup(f)})
		if err2 != nil || got[0].found {
			continue
		}
		if table, err2 := c.ReadPresence(Ref{Family: f, Table: TableName}); err2 == nil && table[0].Found {
			return fmt.Errorf("%w: %w", c.unnumbered(f), err)
		}
	}
	return err
}

// raced reports whether the transaction of another process can cause this error.
func raced(err error) bool {
	for _, e := range [...]error{syscall.EEXIST, syscall.ENOTEMPTY, syscall.ENOENT, syscall.EBUSY, syscall.ENOBUFS, syscall.EINTR, syscall.ERESTART} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (c *Conn) try(ctx context.Context) error {
	generation, err := c.guard()
	if err != nil {
		return err
	}
	p, err := c.makePlan()
	if err != nil {
		return err
	}
	p.generation, p.timeout = generation, c.timeout()
	if len(p.waiting) > 0 {
		unexpired, err := c.awaitExpiry(p.waiting)
		if err == nil && len(unexpired) > 0 {
			err = fmt.Errorf("%s was removed and still exists", unexpired[0])
		}
		return errors.Join(err, syscall.EINTR) // read again
	}
	if p.empty() {
		return nil
	}
	if (p.heavy || len(p.demand) > 0) && c.unlock == nil {
		if err := c.alone(ctx, p); err != nil {
			return err
		}
		return syscall.EINTR // read again
	}
	msgs, err := p.messages()
	if err != nil || len(msgs) == 0 { // the kernel does not answer an empty transaction
		return err
	}
	if err := c.sendIf(p.generation, msgs); err != nil {
		return err
	}
	c.leaving = append(c.leaving, p.expire...)
	c.probe(p.expire)
	return nil
}

// messages builds the transaction. messages adds elements of attachments with NLM_F_EXCL.
// Without the flag, the kernel would accept an element even if another owner added the same
// key after we looked.
func (p plan) messages() ([]netlink.Message, error) {
	msgs, err := encode(p.encode)
	if err != nil {
		return nil, err
	}
	for _, b := range p.bulks {
		msgs = append(msgs, b.messages()...)
	}
	own, err := encode(func(enc *nftables.Conn) error { return bySet(p.added(true), 0, enc.SetAddElements) })
	for i := range own {
		own[i].Header.Flags |= netlink.Excl
	}
	return append(msgs, own...), err
}

// added returns the elements to add: if owned is set, the elements of attachments, otherwise the
// elements of networks.
func (p plan) added(owned bool) (elems []Element) {
	other := func(e Element) bool { _, ok := OwnerOf(e.Comment); return ok != owned }
	if !slices.ContainsFunc(p.add, other) {
		return p.add
	}
	for _, e := range p.add {
		if !other(e) {
			elems = append(elems, e)
		}
	}
	return elems
}

// encode queues everything except the new elements that belong to one attachment; messages adds
// those afterwards. The order is: tables, removals, extras, new elements of networks. Extras are
// in the middle because they create maps that new elements need and delete maps that removals
// use.
func (p plan) encode(enc *nftables.Conn) error {
	for _, t := range p.tables {
		if !t.present && !p.needs(t.family) {
			continue
		}
		if err := t.prepare(enc); err != nil {
			return err
		}
	}
	if err := errors.Join(bySet(p.delete, 0, enc.SetDeleteElements), bySet(p.expire, p.timeout, enc.SetAddElements)); err != nil {
		return err
	}
	for _, s := range p.demand {
		if err := enc.AddSet(s.set(), nil); err != nil {
			return fmt.Errorf("add set %s: %w", s.name, err)
		}
		s.addRules(enc)
	}
	for _, x := range p.extras {
		if err := x(enc); err != nil {
			return err
		}
	}
	return bySet(p.added(false), 0, enc.SetAddElements)
}

// needs reports whether the plan adds something to our table of this family. Then the table
// must exist.
func (p plan) needs(f nftables.TableFamily) bool {
	for _, e := range p.add {
		if spec, _ := specOf(e.Set); spec.family == f {
			return true
		}
	}
	return p.tenants && f == nftables.TableFamilyINet
}

// bySet sends the elements of a set together, as many as fit into one message (64 KiB).
func bySet(elems []Element, timeout time.Duration, do func(*nftables.Set, []nftables.SetElement) error) error {
	const perMessage = 150
	var sets []string
	of := make(map[string][]nftables.SetElement)
	send := func(name string) error {
		spec, _ := specOf(name)
		if err := do(spec.set(), of[name]); err != nil {
			return fmt.Errorf("elements of %s: %w", name, err)
		}
		of[name] = of[name][:0]
		return nil
	}
	for _, e := range elems {
		if _, ok := of[e.Set]; !ok {
			sets = append(sets, e.Set)
		}
		if of[e.Set] = append(of[e.Set], e.setElement(timeout)); len(of[e.Set]) < perMessage {
			continue
		}
		if err := send(e.Set); err != nil {
			return err
		}
	}
	for _, name := range sets {
		if len(of[name]) == 0 {
			continue
		}
		if err := send(name); err != nil {
			return err
		}
	}
	return nil
}

// alone takes the lock for a plan. A plan without extras waits at most one second and then
// continues without the lock. In the worst case two processes then add the same rule for a set
// on demand, which does no harm.
func (c *Conn) alone(ctx context.Context, p plan) error {
	if p.heavy {
		return c.lock(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if c.lock(ctx) != nil {
		c.unlock = func() {}
	}
	return nil
}

// lock stops two of our processes from adding the same rule or chain at once, because the
// kernel would accept both. Elements do not need the lock. So a process that hangs while it
// holds the lock blocks only processes that add a rule or a chain.
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
