// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package nl is a route-netlink socket in one namespace, on vishvananda/netlink,
// with what that leaves to its callers: the namespace is fixed when the socket
// is opened, interrupted dumps are retried in one place, not-found is one
// function, and sysctls of the namespace are at hand.
package nl

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/netns"
)

// Conn is a socket in one namespace. The methods of netlink.Handle act there.
type Conn struct {
	*netlink.Handle
	NS *netns.NS // nil for the namespace of the process

	proc   string
	worker *netns.Worker
	strict *vnl.SocketHandle // opened by Addrs
}

// Host opens a socket in the namespace of the process. proc is where procfs is.
func Host(proc string) (*Conn, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	return &Conn{Handle: h, proc: proc}, nil
}

// In opens a socket in ns and takes ns over: Close closes both.
func In(ns *netns.NS, proc string) (*Conn, error) {
	h, err := netlink.NewHandleAt(vnetns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open netlink socket in %s: %w", ns.Path(), err), ns.Close())
	}
	return &Conn{Handle: h, NS: ns, proc: proc}, nil
}

// Close closes the socket, the namespace and the thread that Do uses.
func (c *Conn) Close() {
	c.Handle.Close()
	if c.strict != nil {
		c.strict.Close()
	}
	if c.worker != nil {
		c.worker.Close()
	}
	if c.NS != nil {
		c.NS.Close() //nolint:errcheck // read only
	}
}

// Do runs fn on a thread inside the namespace. The thread lives as long as c.
func (c *Conn) Do(fn func() error) error {
	if c.NS == nil {
		return fn()
	}
	if c.worker == nil {
		c.worker = c.NS.NewWorker()
	}
	return c.worker.Do(fn)
}

// Link returns a link by name. IsNotFound tells that there is none.
func (c *Conn) Link(name string) (netlink.Link, error) {
	link, err := c.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("find link %s: %w", name, err)
	}
	return link, nil
}

// IsNotFound says whether err means that a link, address, route, rule or
// neighbour does not exist.
func IsNotFound(err error) bool {
	var lnf netlink.LinkNotFoundError
	return errors.As(err, &lnf) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ESRCH) ||
		errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EADDRNOTAVAIL)
}

// Retry repeats a dump that the kernel interrupted because a table changed
// under it (NLM_F_DUMP_INTR), at most ten times.
func Retry[T any](dump func() (T, error)) (out T, err error) {
	for range 10 {
		if out, err = dump(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return out, err
		}
	}
	return out, err
}
