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

// ErrGone is wrapped when the namespace or the interface does not exist any more, or
// another one has its name.
var ErrGone = errors.New("the interface is gone")

// Place is one interface in a container's namespace. It is found once, opened for each
// exchange, and never held open in between, since an open socket or descriptor would keep a
// dead container's namespace alive. No thread stays in the namespace. It is stored as JSON.
type Place struct {
	NetNS  string   `json:"netns"` // a path that the keeper can open
	ID     netns.ID `json:"id"`    // of the namespace
	IfName string   `json:"ifname"`
	Index  int      `json:"index"`
	Proc   string   `json:"-"` // the mount point of procfs; "" means /proc
}

// Find finds an interface and sets it up, since a server is reached through it.
func Find(path, ifName string) (*Place, error) {
	ns, err := netns.Open(path)
	if err != nil {
		return nil, goneOr(err)
	}
	id, err := ns.ID()
	if err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	p := &Place{NetNS: path, ID: id, IfName: ifName}
	conn, err := nl.In(ns, p.procfs())
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	link, err := conn.Link(ifName)
	if err != nil {
		return nil, fmt.Errorf("error looking up %q: %w", ifName, goneOr(err))
	}
	p.Index = link.Attrs().Index
	if link.Attrs().Flags&net.FlagUp == 0 {
		if err := conn.LinkSetUp(link); err != nil {
			return nil, fmt.Errorf("set %s up: %w", ifName, err)
		}
	}
	return p, nil
}

func (p *Place) procfs() string {
	if p.Proc == "" {
		return "/proc"
	}
	return p.Proc
}

// goneOr returns ErrGone for a missing object.
func goneOr(err error) error {
	if netns.Gone(err) || nl.IsNotFound(err) {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	return err
}

// Same reports whether q is the same interface of the same namespace.
func (p *Place) Same(q *Place) bool { return p.ID == q.ID && p.Index == q.Index }

// open opens the namespace, if it is still the same.
func (p *Place) open() (*netns.NS, error) {
	ns, err := netns.Open(p.NetNS)
	if err != nil {
		return nil, goneOr(err)
	}
	id, err := ns.ID()
	if err == nil && id != p.ID {
		err = fmt.Errorf("%w: %s is another namespace now", ErrGone, p.NetNS)
	}
	if err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	return ns, nil
}

// Do runs fn on a thread inside the namespace, which ends afterwards. Sockets that fn opens
// may be used from any thread.
func (p *Place) Do(fn func() error) error {
	ns, err := p.open()
	if err != nil {
		return err
	}
	defer ns.Close() //nolint:errcheck // read only
	return ns.Do(fn)
}

// Conn opens a netlink socket there and finds the link. The caller closes it.
func (p *Place) Conn() (*nl.Conn, netlink.Link, error) {
	ns, err := p.open()
	if err != nil {
		return nil, nil, err
	}
	conn, err := nl.In(ns, p.procfs())
	if err != nil {
		return nil, nil, err
	}
	link, err := conn.LinkAt(p.Index)
	if err != nil {
		conn.Close()
		return nil, nil, fmt.Errorf("look up %s: %w", p.IfName, goneOr(err))
	}
	return conn, link, nil
}

// Look returns nil while the interface exists.
func (p *Place) Look() error {
	conn, _, err := p.Conn()
	if err != nil {
		return err
	}
	conn.Close()
	return nil
}

// Interface is the link in the form of package net, with its current Ethernet address: a
// later plugin (tuning) may have changed that.
func (p *Place) Interface() (*net.Interface, error) {
	conn, link, err := p.Conn()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	a := link.Attrs()
	return &net.Interface{Index: a.Index, Name: a.Name, MTU: a.MTU, HardwareAddr: a.HardwareAddr}, nil
}
