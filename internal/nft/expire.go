// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/durable"
)

// When a process deletes an element, closing its socket waits for RCU (11-12 ms), and
// transactions of other processes wait too. Removal by expiry avoids this: a removal adds the
// element again with a timeout of a millisecond. Newer kernels (Linux 6.12 and backports) then
// change the element's timeout. Older kernels accept the same message but change nothing. So the first removal
// after a boot probes the kernel: its timeout is long enough to be read back. An element's absence would prove
// nothing, because another program may have flushed the ruleset. The removal deletes every element that still
// exists at the deadline. A file in the run directory records the result for later processes.

// expiry says whether removal by expiry works on this kernel. The file holds it.
type expiry string

const (
	expiryUnknown expiry = ""
	expiryWorks   expiry = "expires"
	expiryIgnored expiry = "ignored"
)

// expiryDeadline is how long an element with a timeout of 1 ms may still exist: a tick of the
// kernel's clock (10 ms at HZ=100), and time until the kernel runs.
const expiryDeadline = 50 * time.Millisecond

// fewElements is how many elements one system call looks up.
const fewElements = 64

// probeAfter is the timeout of the first removal. The kernel cannot end it before probe reads it.
const probeAfter = 10 * time.Millisecond

// mayExpire reports whether to try removal by expiry.
func (c *Conn) mayExpire() bool {
	if c.expiry == expiryUnknown {
		c.expiry = c.recallExpiry()
	}
	return c.expiry != expiryIgnored
}

// timeout returns the timeout of a removal.
func (c *Conn) timeout() time.Duration {
	if c.expiry == expiryUnknown {
		return probeAfter
	}
	return expireAfter
}

// probe finds out, right after the first removal, whether the kernel has applied its timeout. If probe cannot
// tell, the next removal probes.
func (c *Conn) probe(elems []Element) {
	if c.expiry != expiryUnknown || len(elems) == 0 {
		return
	}
	c.probing = true
	got, err := c.lookup(elems[:min(len(elems), fewElements)])
	if err == nil && slices.ContainsFunc(got, func(f found) bool { return f.found && f.leaving }) {
		c.learnExpiry(expiryWorks)
	}
}

// settle waits until expired elements are gone. If the kernel ignores the timeout, settle
// deletes them.
func (c *Conn) settle() error {
	if len(c.leaving) == 0 {
		return nil
	}
	if len(c.leaving) > fewElements && c.expiry == expiryWorks && !c.probing {
		AwaitTick(Ticks()) // looking up each element would take longer
		c.leaving = nil
		return nil
	}
	unexpired, err := c.awaitExpiry(c.leaving)
	if err != nil {
		return err
	}
	c.leaving, c.probing = nil, false
	if len(unexpired) == 0 || c.expiry == expiryWorks { // the kernel still removes the others
		return nil
	}
	if c.expiry == expiryUnknown {
		c.learnExpiry(expiryIgnored)
	}
	return c.deleteUnexpired(unexpired)
}

// deleteUnexpired deletes elements that did not expire. If another process deletes one of them first, the kernel
// refuses the transaction.
func (c *Conn) deleteUnexpired(unexpired []Element) error {
	const tries = 8
	for try := 1; len(unexpired) > 0; try++ {
		msgs, err := encode(plan{delete: unexpired}.encode)
		if err != nil {
			return err
		}
		err = c.send(msgs)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.ENOENT) || try == tries {
			return fmt.Errorf("delete elements that did not expire: %w", err)
		}
		if unexpired, err = c.present(unexpired); err != nil {
			return err
		}
	}
	return nil
}

// Leave ends the wait for removals that Start has committed, and reports whether that is safe. The
// kernel removes the elements at its next tick. Before a caller gives back something that they name, such as an
// address, it must call AwaitTick. If removal by expiry may not work on this kernel, Leave returns false, and
// the caller must call Commit.
func (c *Conn) Leave() bool {
	works, _ := c.ExpiryWorks()
	if !works || c.probing {
		return false
	}
	c.leaving = nil
	return true
}

// Tick is a time of the kernel's count of ticks, jiffies.
type Tick uintptr

// Ticks reads the count of ticks, which ends the timeouts of elements, too. times(2) gives it in hundredths of a second, so it may change
// only with the tenth tick (at HZ=1000). No clock can stand for it: a virtual processor may be stopped between the two writes that
// advance the count and the clocks.
func Ticks() Tick {
	var unused unix.Tms
	now, err := unix.Times(&unused)
	if err != nil {
		panic("times: " + err.Error()) // cannot fail: the buffer can be written
	}
	return Tick(now)
}

// AwaitTick waits until all elements have expired whose removal, in any process, was committed before since was
// read. A removal lasts one tick, so it is over when the count is another one, in 10 ms at most. The first
// removal after a boot lasts longer; the process that makes it waits for it (Leave).
func AwaitTick(since Tick) {
	for Ticks() == since {
		time.Sleep(expireAfter) //nolint:forbidigo // a few milliseconds, which no caller may skip
	}
}

// awaitExpiry waits until the elements no longer exist. It returns those that still exist at the
// deadline.
func (c *Conn) awaitExpiry(elems []Element) ([]Element, error) {
	deadline := time.Now().Add(expiryDeadline)
	for {
		late := time.Now().After(deadline) // read before the lookup: this process may be delayed after it
		unexpired, err := c.present(elems)
		if err != nil || len(unexpired) == 0 || late {
			return unexpired, err
		}
		elems = unexpired
		time.Sleep(expireAfter / 4) //nolint:forbidigo // the kernel sends no event when an element expires
	}
}

// present returns the elements of elems that still exist unchanged. present leaves out an element
// that now belongs to another owner. On kernels with expiry it also leaves out an element without a
// timeout: another process added the element again after ours expired, and needs it.
func (c *Conn) present(elems []Element) ([]Element, error) {
	got, err := c.lookup(elems)
	if err != nil {
		return nil, err
	}
	works, _ := c.ExpiryWorks()
	var unexpired []Element
	for i, g := range got {
		if g.found && g.same(elems[i]) && g.Comment == elems[i].Comment && (g.leaving || !works) {
			unexpired = append(unexpired, elems[i])
		}
	}
	return unexpired, nil
}

// lookup reads the elements with the keys of elems.
func (c *Conn) lookup(elems []Element) ([]found, error) {
	what := make([]query, len(elems))
	for i, e := range elems {
		spec, _ := specOf(e.Set)
		what[i] = spec.element(e.Key)
	}
	return c.get(what)
}

// ExpiryWorks reports whether removal by expiry works on this kernel. known is false before
// the first removal after a boot.
func (c *Conn) ExpiryWorks() (works, known bool) {
	c.mayExpire() // reads the recorded result
	return c.expiry == expiryWorks, c.expiry != expiryUnknown
}

func (c *Conn) expiryFile() string { return filepath.Join(c.runDir, "nft-expiry") }

// recallExpiry reads what an earlier process recorded about this kernel.
func (c *Conn) recallExpiry() expiry {
	if c.runDir == "" {
		return expiryUnknown
	}
	b, err := durable.Read(c.expiryFile())
	if err != nil {
		return expiryUnknown
	}
	release, answer, _ := strings.Cut(strings.TrimSpace(string(b)), " ")
	if is := expiry(answer); release == kernelRelease() && (is == expiryWorks || is == expiryIgnored) {
		return is
	}
	return expiryUnknown
}

// learnExpiry records whether expiry works. learnExpiry ignores errors, because the file only
// saves time.
func (c *Conn) learnExpiry(is expiry) {
	c.expiry = is
	if c.runDir != "" {
		_ = durable.Write(c.expiryFile(), []byte(kernelRelease()+" "+string(c.expiry)+"\n"))
	}
}

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}
