// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package nl provides a route-netlink socket in one namespace. It builds on vishvananda/netlink
// and adds what that library leaves to its callers. The namespace is fixed when the socket is
// opened. A dump that was interrupted is repeated. One function recognises all "not found"
// errors. Methods read and write the sysctls of the namespace.
package nl

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/rawnl"
	"github.com/patchbay-net/patchbay/netns"
)

// Conn is a socket in one namespace. The methods of the library work in this namespace. Only one goroutine may use
// a Conn at a time: the mutex of its socket protects single requests, and nothing protects its caches.
type Conn struct {
	library
	NS *netns.NS // nil for the namespace of the process

	proc   procfs
	worker *netns.Worker
	ipv6   map[int][]byte // settings of links, by index
}

// Host opens a socket in the namespace of the calling thread, which is that of the process unless the
// thread has entered another (netns.Worker). proc is the path of procfs.
func Host(proc string) (*Conn, error) {
	raw, err := dial(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	return &Conn{library: library{raw: raw}, proc: procfs{path: proc}}, nil
}

// In opens a socket in ns. In takes ownership of ns; Close closes both.
func In(ns *netns.NS, proc string) (*Conn, error) {
	raw, err := dialIn(ns)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open netlink socket in %s: %w", ns.Path(), err), ns.Close())
	}
	return &Conn{library: library{raw: raw, ns: ns}, NS: ns, proc: procfs{path: proc}}, nil
}

// dialIn opens a socket in another namespace.
func dialIn(ns *netns.NS) (*socket, error) {
	fd, err := ns.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	return strict(rawnl.Bind(fd))
}

// Close closes the socket, the namespace and the thread that Do uses.
func (c *Conn) Close() {
	c.closeLibrary()
	c.raw.Close() //nolint:errcheck // nothing to lose
	c.proc.close()
	if c.worker != nil {
		c.worker.Close()
	}
	if c.NS != nil {
		c.NS.Close() //nolint:errcheck // read only
	}
}

// Do runs fn on a thread inside the namespace. The thread ends at Close.
func (c *Conn) Do(fn func() error) error {
	if c.NS == nil {
		return fn()
	}
	if c.worker == nil {
		c.worker = c.NS.NewWorker()
	}
	return c.worker.Do(fn)
}

// Cookie returns the cookie of the socket's namespace (netns.NS.Cookie), or 0 if the kernel
// has none.
func (c *Conn) Cookie() uint64 {
	cookie, err := unix.GetsockoptUint64(int(c.raw.Socket), unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0
	}
	return cookie
}

// IsNotFound reports whether err means that a link, address, route, rule or
// neighbour does not exist.
func IsNotFound(err error) bool {
	var lnf netlink.LinkNotFoundError
	return errors.As(err, &lnf) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ESRCH) ||
		errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EADDRNOTAVAIL)
}

// tries limits how often a dump is started. A dump of some thousand links takes 20 ms. On a node
// where containers come and go, most dumps are interrupted.
const tries = 100

// Retry repeats a dump that the kernel interrupted because a table changed (NLM_F_DUMP_INTR).
// Retry tries at most 100 times.
func Retry[T any](dump func() (T, error)) (out T, err error) {
	for range tries {
		if out, err = dump(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return out, err
		}
	}
	return out, err
}

// FindLink returns the first link that the function is selects, or nil if there is none.
func (c *Conn) FindLink(is func(netlink.Link) bool) (netlink.Link, error) {
	links, err := c.LinkList()
	if i := slices.IndexFunc(links, is); i >= 0 {
		return links[i], nil
	}
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	return nil, nil
}
