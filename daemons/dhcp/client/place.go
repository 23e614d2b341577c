// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/netns"
)

// ErrRemoved means that the namespace or the interface no longer exists, or that another one has its
// name.
var ErrRemoved = errors.New("the interface is gone")

// Place is one interface in a container's namespace. Each exchange with a server opens the
// namespace and closes it again, because an open socket or descriptor would keep the namespace of
// a dead container alive. No thread stays in the namespace. A Place can be stored as JSON.
type Place struct {
	NetNS  string   `json:"netns"`            // a path that the keeper can open
	ID     netns.ID `json:"id"`               // identifies the namespace while it exists; the kernel gives it to a later one
	Cookie uint64   `json:"cookie,omitempty"` // identifies the namespace until the next boot; 0 if it is not known
	IfName string   `json:"ifname"`
	Index  int      `json:"index"`
	Proc   string   `json:"-"` // the mount point of procfs
}

// Find finds an interface and sets it up, because requests leave through it. proc is the mount
// point of procfs.
func Find(proc, path, ifName string) (*Place, error) {
	ns, id, err := open(path)
	if err != nil {
		return nil, err
	}
	p := &Place{NetNS: path, ID: id, Cookie: cookieOf(ns), IfName: ifName, Proc: proc}
	conn, err := nl.In(ns, proc)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	link, err := conn.Link(ifName)
	if err != nil {
		return nil, fmt.Errorf("error looking up %q: %w", ifName, orRemoved(err))
	}
	p.Index = link.Attrs().Index
	if link.Attrs().Flags&net.FlagUp == 0 {
		if err := conn.LinkSetUp(link); err != nil {
			return nil, fmt.Errorf("set %s up: %w", ifName, err)
		}
	}
	return p, nil
}

// orRemoved returns ErrRemoved if err says that an object does not exist. Otherwise it returns err.
func orRemoved(err error) error {
	if netns.Gone(err) || nl.IsNotFound(err) {
		return fmt.Errorf("%w: %w", ErrRemoved, err)
	}
	return err
}

// Same reports whether q is the same interface of the same namespace.
func (p *Place) Same(q *Place) bool {
	return p.ID == q.ID && p.Index == q.Index && sameCookie(p.Cookie, q.Cookie)
}

// cookieOf returns the cookie of a namespace, or 0 if the kernel does not tell it.
func cookieOf(ns *netns.NS) uint64 {
	cookie, _ := ns.Cookie()
	return cookie
}

// sameCookie compares cookies, of which one may not be known.
func sameCookie(a, b uint64) bool { return a == b || a == 0 || b == 0 }

func open(path string) (*netns.NS, netns.ID, error) {
	ns, err := netns.Open(path)
	if err != nil {
		return nil, netns.ID{}, orRemoved(err)
	}
	id, err := ns.ID()
	if err != nil {
		return nil, id, errors.Join(err, ns.Close())
	}
	return ns, id, nil
}

// open opens the namespace. It fails if another namespace now has the path.
func (p *Place) open() (*netns.NS, error) {
	ns, id, err := open(p.NetNS)
	if err == nil && (id != p.ID || !sameCookie(p.Cookie, cookieOf(ns))) {
		return nil, errors.Join(fmt.Errorf("%w: %s is another namespace now", ErrRemoved, p.NetNS), ns.Close())
	}
	return ns, err
}

// do runs fn on a thread inside the namespace. The thread ends with fn. Any thread may use the
// sockets that fn opens.
func (p *Place) do(fn func() error) error {
	ns, err := p.open()
	if err != nil {
		return err
	}
	defer ns.Close() //nolint:errcheck // read only
	return ns.Do(fn)
}

// with calls fn with the link, and with a netlink socket in its namespace.
func (p *Place) with(fn func(*nl.Conn, netlink.Link) error) error {
	ns, err := p.open()
	if err != nil {
		return err
	}
	conn, err := nl.In(ns, p.Proc)
	if err != nil {
		return err
	}
	defer conn.Close()
	link, err := conn.LinkAt(p.Index)
	if err != nil {
		return fmt.Errorf("look up %s: %w", p.IfName, orRemoved(err))
	}
	return fn(conn, link)
}

// Check returns nil while the interface exists. Otherwise it returns an error.
func (p *Place) Check() error {
	return p.with(func(*nl.Conn, netlink.Link) error { return nil })
}

// link returns the interface in the form of package net. It reads the Ethernet address again,
// because a later plugin (tuning) may have changed it.
func (p *Place) link() (out *net.Interface, err error) {
	err = p.with(func(_ *nl.Conn, link netlink.Link) error {
		a := link.Attrs()
		out = &net.Interface{Index: a.Index, Name: a.Name, MTU: a.MTU, HardwareAddr: a.HardwareAddr}
		return nil
	})
	return out, err
}
