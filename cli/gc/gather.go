// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nft/iptnft"
	"github.com/patchbay-net/patchbay/internal/order"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/traces"
	"github.com/patchbay-net/patchbay/ipam"
	"github.com/patchbay-net/patchbay/plugin"
)

// evidence holds everything that names an attachment, grouped by owner.
type evidence struct {
	s    *plugin.Session
	k    *kernel.Kernel
	boot ipam.Boot

	all map[owner.Key]*Candidate

	links      traces.Links
	ofNetworks []nft.Element // elements that belong to a network, not to an attachment
	facts      []record.Fact
	holders    map[string][]owner.Key // the owners that hold each fact
	driver     map[string]bool        // the container ids that `patchbayd docker` will detach

	errs []error // what could not be read; gc judges everything else
}

// gather reads the kernel's objects before the files. An ADD writes its record before it makes
// objects, and a DEL removes the record last. So if gather finds an object without a record, the
// record was lost.
func (c *collector) gather(ctx context.Context) []*Candidate {
	c.all = make(map[owner.Key]*Candidate)
	elems, err := c.k.Traces().Elements(traces.Scope{})
	c.fail(err)
	c.ofNetworks, err = c.k.NFT.OfNetworks()
	c.fail(err)
	c.links, err = c.k.Traces().Links()
	c.fail(err)
	accepted, err := iptnft.Addressed(c.k.NFT)
	c.fail(err)
	c.holders, c.facts, err = c.k.Records.Facts()
	c.fail(err)
	c.readFiles()
	c.readPools(ctx)
	c.readLeases()
	c.readReference()
	c.readDriver()
	c.addElements(elems)
	c.addLinks()
	c.addFacts()
	c.addAccepted(accepted)
	for _, a := range c.all {
		c.addLeft(a)
		c.inherit(a)
	}
	list := slices.Collect(maps.Values(c.all))
	order.By(list, func(x, y *Candidate) int { return strings.Compare(x.Name(), y.Name()) })
	return list
}

func (ev *evidence) fail(err error) {
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		ev.errs = append(ev.errs, err)
	}
}

// get returns the attachment with these names. Old address files and comments in iptables have no
// interface name. For these, get makes a separate attachment with an empty ifName.
func (ev *evidence) get(network, id, ifName string) *Candidate {
	a := ev.owned(owner.Of(network, id, ifName))
	a.Network, a.ContainerID, a.IfName = network, id, ifName
	return a
}

func (ev *evidence) owned(o owner.Key) *Candidate {
	if ev.all[o] == nil {
		ev.all[o] = &Candidate{Owner: o, Objects: []Object{}}
	}
	return ev.all[o]
}

// any reports whether fits returns true for some attachment.
func (ev *evidence) any(fits func(*Candidate) bool) bool {
	for _, a := range ev.all {
		if fits(a) {
			return true
		}
	}
	return false
}

func (ev *evidence) addElements(elems map[owner.Key][]nft.Element) {
	for o, list := range elems {
		a := ev.owned(o)
		a.elements = list
		for _, e := range list {
			if addr, ok := e.Container(); ok {
				a.addr(addr)
			}
			a.addObject("element", nameOf(e), true)
			a.namedBy(e.Comment)
		}
	}
}

// nameOf describes an element without its comment.
func nameOf(e nft.Element) string {
	e.Comment = ""
	return e.String()
}

// addAccepted finds the attachments whose addresses iptables accepts.
func (ev *evidence) addAccepted(comments []string) {
	for _, c := range comments {
		key, ok := nft.OwnerOf(c)
		if !ok {
			continue // a rule of the operator
		}
		a := ev.owned(owner.Key(key))
		a.addObject("rules", "PATCHBAY-ADDRESSES of "+key, true)
		a.namedBy(c)
	}
}

// namedBy takes the attachment's names from a comment, unless the comment was cut.
func (a *Candidate) namedBy(comment string) {
	if network, id, ifName, ok := nft.NamesOf(comment); ok && a.ContainerID == "" {
		a.Network, a.ContainerID, a.IfName = network, id, ifName
	}
}

// addLinks finds links that carry our mark, and links without a mark that a cached result
// names.
func (ev *evidence) addLinks() {
	for o, list := range ev.links.Of {
		for _, l := range list {
			ev.owned(o).addLink(l)
		}
	}
	for _, l := range ev.links.All {
		if l.Attrs().Alias != "" || !isOurKind(l) {
			continue
		}
		if a := ev.namedIn(l); a != nil {
			a.addLink(l)
		}
	}
}

func (a *Candidate) addLink(l netlink.Link) {
	a.links = append(a.links, link{l.Attrs().Name, l.Attrs().Index})
	a.addObject("link", l.Attrs().Name, true)
}

func isOurKind(l netlink.Link) bool {
	return l.Type() == "veth" || l.Type() == "ifb" && strings.HasPrefix(l.Attrs().Name, "bwp")
}

// namedIn finds the attachment of a link that the reference plugins made. For a veth, a cached
// result must have both its name and its MAC address, because names are used again. For an ifb no
// result is needed, because its name is a hash of network and container.
func (ev *evidence) namedIn(l netlink.Link) *Candidate {
	name, mac := l.Attrs().Name, l.Attrs().HardwareAddr.String()
	for _, a := range ev.all {
		if l.Type() == "ifb" && name == kernel.ReferenceIFB(a.Network, a.ContainerID) {
			return a
		}
		if a.cached == nil || a.cached.Result == nil || l.Type() == "ifb" {
			continue
		}
		for _, i := range a.cached.Result.Interfaces {
			if i.Sandbox == "" && i.Name == name && strings.EqualFold(i.Mac, mac) {
				return a
			}
		}
	}
	return nil
}

func (ev *evidence) addFacts() {
	for name, owners := range ev.holders {
		for _, o := range owners {
			if o.Valid() {
				ev.owned(o).addObject("shared fact", name, true)
			}
		}
	}
}

// readReference finds the rules of the reference plugins. It knows them by the names in their
// comments, and by the names of chains, which it derives from each attachment.
func (ev *evidence) readReference() {
	named, err := iptnft.Named(ev.k.NFT)
	ev.fail(err)
	for _, n := range named {
		known := ev.any(func(a *Candidate) bool { // comments in iptables omit the interface name
			return a.Network == n.Network && a.ContainerID == n.ContainerID && (n.IfName == "" || n.IfName == a.IfName)
		})
		if !known {
			ev.get(n.Network, n.ContainerID, n.IfName)
		}
	}
	for _, a := range ev.all {
		if todo, err := leftovers(a).Plan(ev.k.NFT); err == nil && todo != nil && a.ContainerID != "" {
			a.addObject("rules", "of the reference plugins", true)
		}
	}
}

func leftovers(a *Candidate) nft.Extra { return iptnft.Leftovers(a.inIPTables(), a.Addrs) }

// inherit handles traces without an interface name, which come from old address files and from
// rules of iptables. Such a trace gets the namespaces and the age of the container's other
// attachments on the network. So gc judges both alike.
func (ev *evidence) inherit(a *Candidate) {
	if a.IfName != "" || a.ContainerID == "" {
		return
	}
	for _, b := range ev.all {
		if b.IfName != "" && b.Network == a.Network && b.ContainerID == a.ContainerID {
			for _, s := range b.evidence.Spaces {
				a.evidence.Space(s.Path, s.Mark)
			}
			a.evidence.Date(b.evidence.Since)
		}
	}
}
