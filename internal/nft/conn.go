// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Conn is the process's nfnetlink socket with the queue for its next transaction. Only one
// goroutine may use it at a time.
type Conn struct {
	runDir string

	nl *socket // nil before the first use

	queue  []op
	index  map[string]int // position in queue by set and key
	extras []Extra
	expiry expiry

	unlock  func()    // locked by Commit
	leaving []Element // elements with an expiry timeout that may still exist
	probing bool      // they have the timeout of a probe

	verified map[byte]verified // by family
}

// Open returns a Conn. At its first use it opens a socket in the network namespace of the
// calling thread. In runDir it stores, until the next boot, whether removals by expiry work on
// this kernel. If runDir is "", it keeps this in memory.
func Open(runDir string) *Conn { return &Conn{runDir: runDir} }

// Another returns a Conn with a socket of its own, for another goroutine.
func (c *Conn) Another() *Conn { return Open(c.runDir) }

// Close closes the socket. If a transaction deleted something, the kernel waits 11-12 ms in
// close (RCU). So close the socket last, after the link is deleted. Closing twice, or before
// the first use, is no error.
func (c *Conn) Close() error {
	if c.nl == nil {
		return nil
	}
	nl := c.nl
	c.nl = nil
	if err := nl.Close(); err != nil {
		return fmt.Errorf("close nfnetlink: %w", err)
	}
	return nil
}

func (c *Conn) dial() (err error) {
	if c.nl != nil {
		return nil
	}
	if c.nl, err = openSocket(); err != nil {
		return fmt.Errorf("open nfnetlink: %w", err)
	}
	return nil
}

// buffer is the default size of a socket's buffer (net.core.{r,w}mem_default).
const buffer = 200 << 10

// send sends one transaction. send returns the kernel's errors, each with the message that
// caused it. The kernel has processed everything when the system call returns, so send reads
// answers until none is left.
func (c *Conn) send(msgs []netlink.Message) error { return c.sendIf(nil, msgs) }

// sendIf works like send, but the kernel refuses the transaction (ERESTART) if its ruleset has another
// generation. nil is any generation.
func (c *Conn) sendIf(generation []byte, msgs []netlink.Message) error {
	batch := wrap(msgs)
	if generation != nil {
		batch[0].Data = append(batch[0].Data, generation...)
	}
	size := 0
	for _, m := range batch {
		size += 16 + len(m.Data)
	}
	if size > buffer/2 {
		if err := c.nl.grow(4 * size); err != nil {
			return fmt.Errorf("size nfnetlink buffers for %d bytes: %w", size, err)
		}
	}
	sent, err := c.nl.send(batch)
	if err != nil {
		return fmt.Errorf("send nftables transaction: %w", err)
	}
	return c.answers(sent)
}

// answers reads the kernel's answers to a transaction.
func (c *Conn) answers(sent []netlink.Message) error {
	last := sent[len(sent)-2].Header.Sequence
	var errs []error
	for {
		got, err := c.nl.receive()
		var op *netlink.OpError
		switch {
		case errors.As(err, &op) && op.Sequence != 0:
			errs = append(errs, fmt.Errorf("%s: %w", named(sent, op.Sequence), op))
			// The kernel answers the first message only if it applied nothing.
			if op.Sequence == last || op.Sequence == sent[0].Header.Sequence {
				c.drain()
				return errors.Join(errs...)
			}
		case err != nil:
			c.drain()
			return errors.Join(append(errs, fmt.Errorf("receive nftables answer: %w", err))...)
		case len(got) > 0 && got[len(got)-1].Header.Sequence == last:
			return errors.Join(errs...)
		}
	}
}

// named describes the message with a sequence number.
func named(sent []netlink.Message, seq uint32) string {
	for _, m := range sent[1:] {
		if m.Header.Sequence == seq {
			return describe(m)
		}
	}
	return "nftables transaction"
}

// drain discards unread answers, so that the next request does not read them.
func (c *Conn) drain() {
	var b [1]byte
	for {
		if _, _, err := unix.Recvfrom(int(c.nl.Socket), b[:], unix.MSG_DONTWAIT|unix.MSG_TRUNC); err != nil && !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}
