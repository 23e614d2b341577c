// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// claim is a published port: an element that somebody else may have.
type claim struct {
	netstate.Element
	k         *kernel.Kernel
	container string
	rec       *record.Record // nil in CHECK
}

// Ensure queues the claim. Who has the port is known when the queue is
// committed, and only then is the owner's life looked at.
func (c claim) Ensure(_ context.Context, env *netstate.Env) (netstate.Undo, error) {
	env.NFT.Claim(func(taken *nft.TakenError) error {
		o := ownerOf(c.k, taken.Have)
		switch {
		case o.rec != nil && o.rec.ContainerID == c.container:
			return c.displace(o.rec.Owner)
		case o.alive:
			return spec.Errorf(spec.CodeInvalidConfig, "host port is taken by %s", o.who).
				WithDetails("%s; the other's mapping is %s", taken.Want, taken.Have)
		}
		env.Warn(fmt.Errorf("took over %s of %s, which is gone", taken.Have, o.who))
		return nil
	}, c.Element.Element)
	return nil, nil
}

// displace notes, before the port changes hands, who gets it back.
func (c claim) displace(o owner.Key) error {
	if slices.Contains(c.rec.Displaced, o) {
		return nil
	}
	c.rec.Displaced = append(c.rec.Displaced, o)
	return c.k.Records.Write(c.rec)
}

// Diff finds no fault with a port that another attachment of the container has.
func (c claim) Diff(ctx context.Context, env *netstate.Env) (string, error) {
	diff, err := c.Element.Diff(ctx, env)
	if diff == "" || err != nil {
		return diff, err
	}
	have, ok, err := env.NFT.Get(c.Set, c.Key)
	if o := ownerOf(c.k, have); ok && err == nil && o.rec != nil && o.rec.ContainerID == c.container {
		return "", nil
	}
	return diff, err
}

// holder is the owner of a published port.
type holder struct {
	who   string
	rec   *record.Record // nil when it has none
	alive bool
}

// ownerOf names the owner of an element and says whether it still uses it. It
// is dead when its record or its namespace is gone, or the namespace has not
// the address the port leads to. What cannot be looked into counts as alive.
func ownerOf(k *kernel.Kernel, e nft.Element) holder {
	h := holder{who: fmt.Sprintf("%q", e.Comment)}
	key, ok := nft.OwnerOf(e.Comment)
	if !ok {
		return h
	}
	rec, err := k.Records.Find(owner.Key(key), name)
	if err != nil || rec == nil {
		h.alive = err != nil
		return h
	}
	h.who = fmt.Sprintf("container %s (network %s, interface %s)", rec.ContainerID, rec.Network, rec.IfName)
	h.rec, h.alive = rec, uses(k, rec.NetNS, e)
	return h
}

// uses says whether the namespace at path is there and has the address of e.
func uses(k *kernel.Kernel, path string, e nft.Element) bool {
	if path == "" {
		return true
	}
	sandbox, err := k.Sandbox(path)
	if err != nil {
		return !netns.Gone(err)
	}
	to, ok := target(e)
	if !ok {
		return true
	}
	addrs, err := addresses(sandbox)
	if err != nil {
		return true
	}
	for _, a := range addrs {
		if a == to {
			return true
		}
	}
	return false
}

func addresses(c *nl.Conn) (out []netip.Addr, err error) {
	list, err := c.AddrList(nil, 0)
	for _, a := range list {
		if ip := nl.AddrOf(a.IP); ip.IsValid() {
			out = append(out, ip)
		}
	}
	return out, err
}

// target is the container's address in a published port's element: address and
// port, the port padded to four bytes.
func target(e nft.Element) (netip.Addr, bool) {
	if len(e.Data) != 8 && len(e.Data) != 20 {
		return netip.Addr{}, false
	}
	return netip.AddrFromSlice(e.Data[:len(e.Data)-4])
}

// findRoute asks which interface leads to the container: the bridge, or the
// host's end of a veth. Without a route there is no way from 127.0.0.1 and no
// hairpin, and the reference says nothing.
func (p *plan) findRoute(r *plugin.Request, env *netstate.Env) {
	if !p.snat || len(p.addrs) == 0 {
		return
	}
	towards := firstHostInterface(r.Prev())
	if r.Session.Dry == nil {
		link, err := routeTo(env, p.addrs[0].Addr())
		if err != nil {
			return
		}
		towards, p.port = link.Attrs().Name, findPort(r, env, link)
	}
	for _, a := range p.addrs {
		if a.Addr().Is4() {
			p.route = towards
		}
	}
}

func routeTo(env *netstate.Env, a netip.Addr) (netlink.Link, error) {
	routes, err := env.Host.RouteGet(a.AsSlice())
	if err != nil {
		return nil, fmt.Errorf("find route to %s: %w", a, err)
	}
	for _, r := range routes {
		if r.LinkIndex != 0 {
			return env.Host.LinkByIndex(r.LinkIndex)
		}
	}
	return nil, fmt.Errorf("find route to %s: %w", a, unix.ENETUNREACH)
}

// firstHostInterface is where a chain's first plugin puts what routes to the
// container: the bridge, else the veth.
func firstHostInterface(prev *spec.Result) string {
	for _, i := range prev.Interfaces {
		if i.Sandbox == "" {
			return i.Name
		}
	}
	return ""
}
