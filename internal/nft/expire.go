// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/durable"
)

// Deleting an element makes the closing socket wait for RCU (11-12 ms), and every other
// process's transaction with it. Some kernels change the timeout of an element that is
// added again (Linux 6.12 and backports). There a removal sets a timeout of a millisecond,
// and no process waits. Older kernels accept the same message and change nothing. So the
// first removal after a boot is the probe: what still exists at the deadline is deleted,
// and a file in the run directory records it for later processes.

// expiry is what the file says of this kernel.
type expiry string

const (
	expiryUnknown expiry = ""
	expiryWorks   expiry = "works"
	expiryIgnored expiry = "ignored"
)

// expiryDeadline is the longest time that an element with a timeout of 1 ms may still
// exist: a tick of the kernel's clock (10 ms at HZ=100) and time to be scheduled.
const expiryDeadline = 50 * time.Millisecond

// mayExpire reports whether to try expiry.
func (c *Conn) mayExpire() bool {
	if c.expiry == expiryUnknown {
		c.expiry = c.recallExpiry()
	}
	return c.expiry != expiryIgnored
}

// settle waits until expired elements are gone. On a kernel that ignores the timeout it
// deletes them.
func (c *Conn) settle() error {
	if len(c.leaving) == 0 {
		return nil
	}
	left, err := c.gone(c.leaving)
	if err != nil {
		return err
	}
	c.leaving = nil
	if c.expiry == expiryUnknown {
		c.learnExpiry(len(left) == 0)
	}
	if len(left) == 0 || c.expiry == expiryWorks { // the kernel is still removing the rest
		return nil
	}
	msgs, err := encode(plan{delete: left}.encode)
	if err != nil {
		return err
	}
	if err := c.send(msgs); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete elements that did not expire: %w", err)
	}
	return nil
}

// gone waits for elements to leave and returns those that did not.
func (c *Conn) gone(elems []Element) ([]Element, error) {
	deadline := time.Now().Add(expiryDeadline)
	for {
		left, err := c.present(elems)
		if err != nil || len(left) == 0 || time.Now().After(deadline) {
			return left, err
		}
		elems = left
		time.Sleep(expireAfter / 4) //nolint:forbidigo // the kernel sends no event when an element expires
	}
}

// present returns those of elems that can still be fetched, as they were. It leaves out an
// element that belongs to another owner by now. Where timeouts work it also leaves out an
// equal element without a timeout: another process has added it again since ours expired,
// and needs it.
func (c *Conn) present(elems []Element) ([]Element, error) {
	what := make([]query, len(elems))
	for i, e := range elems {
		spec, _ := specOf(e.Set)
		what[i] = spec.element(e.Key)
	}
	got, err := c.get(what)
	if err != nil {
		return nil, err
	}
	works, _ := c.ExpiryWorks()
	var left []Element
	for i, g := range got {
		if g.found && g.same(elems[i]) && g.Comment == elems[i].Comment && (g.leaving || !works) {
			left = append(left, elems[i])
		}
	}
	return left, nil
}

// ExpiryWorks reports whether removals expire on this kernel (true) or delete (false); known
// is false before the first removal.
func (c *Conn) ExpiryWorks() (works, known bool) {
	c.mayExpire() // reads what is known
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

// learnExpiry records it. The file only saves time, so a run directory that cannot be
// written is no error.
func (c *Conn) learnExpiry(works bool) {
	c.expiry = expiryIgnored
	if works {
		c.expiry = expiryWorks
	}
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
