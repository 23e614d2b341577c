// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Conn is a process's one nfnetlink socket and the queue for its next transaction. It is
// not safe for concurrent use.
type Conn struct {
	runDir string

	lib *nftables.Conn // nil until the first use
	nl  *netlink.Conn  // lib's socket

	queue  []op
	index  map[string]int // place in queue by set and key
	extras []Extra
	expiry expiry

	unlock  func()    // set while Commit holds the lock
	leaving []Element // removed by expiry, but not yet seen to be gone
}

// Open returns a Conn that dials at its first use, in the network namespace of the calling
// thread. runDir keeps what removals showed about this kernel until the next boot; "" keeps
// it in memory.
func Open(runDir string) *Conn { return &Conn{runDir: runDir} }

// Close closes the socket. After a transaction that deleted something the kernel waits in
// close for 11-12 ms (RCU), so close when nothing else has to wait: after the link is
// deleted. To close twice, or before the first dial, is no error.
func (c *Conn) Close() error {
	if c.lib == nil {
		return nil
	}
	lib := c.lib
	c.lib, c.nl = nil, nil
	if err := lib.CloseLasting(); err != nil {
		return fmt.Errorf("close nfnetlink: %w", err)
	}
	return nil
}

// dial opens the socket. With ExtendedAcknowledge the kernel adds a text to its errors.
func (c *Conn) dial() error {
	if c.lib != nil {
		return nil
	}
	var nl *netlink.Conn
	keep := func(conn *netlink.Conn) error {
		nl = conn
		return conn.SetOption(netlink.ExtendedAcknowledge, true)
	}
	lib, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(keep))
	if err != nil {
		return fmt.Errorf("open nfnetlink: %w", err)
	}
	c.lib, c.nl = lib, nl
	return nil
}

// buffer is a socket's default buffer size (net.core.{r,w}mem_default).
const buffer = 200 << 10

// send sends one transaction and returns the kernel's errors, each with the message that it
// answers. The kernel has processed everything when the send call returns, so send reads
// answers until there are no more.
func (c *Conn) send(msgs []netlink.Message) error {
	batch := wrap(msgs)
	size := 0
	for _, m := range batch {
		size += 16 + len(m.Data)
	}
	if size > buffer/2 {
		if err := errors.Join(c.nl.SetWriteBuffer(4*size), c.nl.SetReadBuffer(4*size)); err != nil {
			return fmt.Errorf("size nfnetlink buffers for %d bytes: %w", size, err)
		}
	}
	sent, err := c.nl.SendMessages(batch)
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
		got, err := c.nl.Receive()
		var op *netlink.OpError
		switch {
		case errors.As(err, &op) && op.Sequence != 0:
			errs = append(errs, fmt.Errorf("%s: %w", named(sent, op.Sequence), op))
			// The kernel answers the first message only when it applied nothing.
			if op.Sequence == last || op.Sequence == sent[0].Header.Sequence {
				return errors.Join(append(errs, c.drain())...)
			}
		case err != nil:
			return errors.Join(append(errs, fmt.Errorf("receive nftables answer: %w", err), c.drain())...)
		case len(got) > 0 && got[len(got)-1].Header.Sequence == last:
			return errors.Join(errs...)
		}
	}
}

// named describes the message of a sequence number.
func named(sent []netlink.Message, seq uint32) string {
	for _, m := range sent[1:] {
		if m.Header.Sequence == seq {
			return describe(m)
		}
	}
	return "nftables transaction"
}

// drain discards unread answers, so that the next request reads its own.
func (c *Conn) drain() error {
	raw, err := c.nl.SyscallConn()
	if err != nil {
		return fmt.Errorf("drain nfnetlink: %w", err)
	}
	return raw.Control(func(fd uintptr) {
		var b [1]byte
		for {
			if _, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_DONTWAIT|unix.MSG_TRUNC); err != nil && !errors.Is(err, syscall.EINTR) {
				return
			}
		}
	})
}
