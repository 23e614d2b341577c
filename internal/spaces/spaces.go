// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package spaces asks the network namespaces of this node over netlink what is in them. Package life finds the
// namespaces.
package spaces

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/netns"
)

// Judge returns a judge of the namespaces of a node, which can tell that containerd has forgotten a sandbox.
func Judge(p paths.Paths) life.Judge {
	return life.Judge{Proc: p.Proc, Run: p.Run, Containerd: filepath.SplitList(p.Containerd), Quiet: Quiet}
}

// Finder finds a namespace that has one of the addresses. It returns "" if there is none.
type Finder func(...netip.Addr) (path string, err error)

// NewFinder returns a Finder among all namespaces of this node, except our own. The Finder looks into them once, when it has
// the first address to find.
func NewFinder(proc string) Finder {
	all := func(*nl.Conn) (bool, error) { return true, nil }
	return finder(func() (map[netip.Addr]string, error) { return addresses(proc, all) })
}

// NewFinderHere works like NewFinder, but only among namespaces with a link whose other end or master is in ours.
func NewFinderHere(proc string) Finder {
	return finder(func() (map[netip.Addr]string, error) { return attached(proc) })
}

func finder(read func() (map[netip.Addr]string, error)) Finder {
	read = sync.OnceValues(read)
	return func(addrs ...netip.Addr) (string, error) {
		if len(addrs) == 0 {
			return "", nil
		}
		where, err := read()
		for _, a := range addrs {
			if path := where[a]; path != "" {
				return path, nil
			}
		}
		return "", err
	}
}

// attached maps each address in namespaces with a link whose other end or master is in ours to a path of its namespace.
func attached(proc string) (map[netip.Addr]string, error) {
	own, err := netns.Current()
	if err != nil {
		return nil, err
	}
	defer own.Close() //nolint:errcheck // read only
	return addresses(proc, func(c *nl.Conn) (bool, error) {
		links, err := c.LinkList() // gives our namespace a number there, if a link leads to it
		if err != nil {
			return false, err
		}
		id, err := c.GetNetNsIdByFd(own.Fd())
		return id >= 0 && slices.ContainsFunc(links, func(l netlink.Link) bool { return l.Attrs().NetNsID == id }), err
	})
}

// addresses maps each address in those namespaces of this node, except our own, for which want returns true.
func addresses(proc string, want func(*nl.Conn) (bool, error)) (map[netip.Addr]string, error) {
	where := make(map[netip.Addr]string)
	err := life.Each(proc, func(ns *netns.NS) error {
		c, err := nl.In(ns, proc)
		if err != nil {
			return err
		}
		defer c.Close()
		if wanted, err := want(c); err != nil || !wanted {
			return err
		}
		list, err := c.AddrList(nil, netlink.FAMILY_ALL)
		if err != nil {
			return fmt.Errorf("list addresses in %s: %w", ns.Path(), err)
		}
		for _, a := range list {
			if addr := nl.AddrOf(a.IP); addr.IsValid() && !addr.IsLoopback() {
				where[addr] = ns.Path()
			}
		}
		return nil
	})
	return where, err
}

// Links maps the alias and the name of each link in all namespaces, also in our own, to a path of its namespace. At the start
// of an ADD, a link of ours has only its name.
func Links(proc string) (map[string]string, error) {
	own, err := netns.Current()
	if err != nil {
		return nil, err
	}
	defer own.Close() //nolint:errcheck // read only
	where := make(map[string]string)
	look := func(ns *netns.NS) error {
		conn, err := nl.In(ns, proc)
		if err != nil {
			return err
		}
		defer conn.Close()
		links, err := conn.LinkList()
		for _, l := range links {
			where[l.Attrs().Alias], where[l.Attrs().Name] = ns.Path(), ns.Path()
		}
		return err
	}
	return where, errors.Join(look(own), life.Each(proc, look))
}

// IDs returns the ids that the namespace of host has for the namespaces that this process can see.
func IDs(proc string, host *nl.Conn) (map[int]bool, error) {
	ids := make(map[int]bool)
	err := life.Each(proc, func(ns *netns.NS) error {
		id, err := host.GetNetNsIdByFd(ns.Fd())
		ids[id] = true
		return err
	})
	return ids, err
}

// Quiet reports whether a namespace has no interface that is up, other than lo and the one with the name allowed.
func Quiet(ns *netns.NS, proc, allowed string) bool {
	conn, err := nl.In(ns, proc)
	if err != nil {
		return false
	}
	defer conn.Close()
	links, err := conn.LinkList()
	for _, l := range links {
		at := l.Attrs()
		if at.Name != "lo" && at.Name != allowed && at.RawFlags&unix.IFF_UP != 0 {
			return false
		}
	}
	return err == nil && len(links) > 0
}
