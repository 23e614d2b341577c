// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/inventory"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nft/iptnft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/results"
	"github.com/patchbay-net/patchbay/internal/spaces"
	"github.com/patchbay-net/patchbay/ipam"
)

// strays finds the objects that belong to no known attachment, kind by kind.
func (c *collector) strays() []*Candidate {
	c.strayFiles("cached result", filepath.Join(results.Dir(c.Paths.CNI), "*"), tornJSON)
	c.strayFiles("temporary file", results.Temps(c.Paths.CNI), func(string) bool { return true })
	c.strayFacts()
	c.foreignHolders()
	c.strayIFBs()
	c.strayAccepts()
	c.strayMeshes()
	c.strayElements()
	c.danglingVeths()
	return c.stray
}

// removal is a function that removes a stray object.
type removal func(context.Context, *kernel.Kernel) error

// dead adds a dead object; why is the reason.
func (c *collector) dead(kind, name, why string, remove removal) *Candidate {
	a := &Candidate{State: Dead, Why: why, Objects: []Object{{kind, name}}, remove: remove}
	c.stray = append(c.stray, a)
	return a
}

// unsure adds an object that gc reports and keeps. fix says what the operator can do.
func (c *collector) unsure(kind, name, why, fix string) {
	a := c.dead(kind, name, why, nil)
	a.State, a.fix = Unsure, fix
}

// ageless adds a dead object that has no date. Its key identifies it in seenFile. gc keeps the
// object until it has known it for a while.
func (c *collector) ageless(kind, name, why string, key owner.Key, remove removal) {
	a := c.dead(kind, name, why, remove)
	if least := c.world.least(); c.world.now.Sub(c.seen.since(key, c.world.now)) < least {
		a.State, a.Why = Unsure, fmt.Sprintf("%s, but gc has known it for less than %v", why, least)
	}
}

// key returns the key under which seenFile stores an object that belongs to no attachment.
func key(kind, name string) owner.Key { return owner.Of(kind, name, "") }

// tornJSON reports whether a file is empty or was cut short.
func tornJSON(path string) bool {
	data, err := os.ReadFile(path)
	return err == nil && !json.Valid(data)
}

// strayFiles finds regular files that are older than the grace period. libcni does not write
// files atomically, so a younger file may still be incomplete.
func (c *collector) strayFiles(kind, pattern string, stray func(string) bool) {
	found, _ := filepath.Glob(pattern)
	for _, path := range found {
		fi, err := os.Lstat(path)
		if err != nil || !fi.Mode().IsRegular() || c.fresh(fi.ModTime()) || !stray(path) {
			continue
		}
		a := c.dead(kind, path, "it was truncated while it was written",
			func(context.Context, *kernel.Kernel) error { return removeOld(path, fi.ModTime()) })
		if ahead := fi.ModTime().Sub(c.world.now); ahead > 0 && c.Grace > 0 {
			a.State, a.Why = Unsure, fmt.Sprintf(inventory.AheadOfClock, ahead.Round(time.Second))
		}
	}
}

// fresh reports whether a file is too young to judge, because it was written after gc began. A
// file whose date is in the future is not too young.
func (c *collector) fresh(written time.Time) bool {
	if age := c.world.now.Sub(written); age >= 0 {
		return age < c.Grace
	}
	return !written.After(time.Now())
}

// removeOld deletes a file unless it has been written again since gc looked.
func removeOld(path string, was time.Time) error {
	fi, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !fi.ModTime().Equal(was) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.Remove(path)
}

// strayFacts finds shared facts without a holder, which a killed process left.
func (c *collector) strayFacts() {
	for _, f := range c.facts {
		if len(c.holders[f.Name]) > 0 {
			continue
		}
		c.dead("shared fact", f.Name, "no attachment holds it", func(ctx context.Context, k *kernel.Kernel) error {
			return errors.Join(k.ReleaseFact(ctx, f.Name, ""), k.NFT.Commit(ctx))
		})
	}
}

// foreignHolders finds files among the holders of a fact that belong to no attachment and no
// mesh. Such a file keeps the fact for ever. Another program made it, so gc only reports it.
func (c *collector) foreignHolders() {
	for _, f := range c.facts {
		for _, o := range c.holders[f.Name] {
			if !o.Valid() && !mesh.IsHolder(o) {
				c.unsure("file", c.k.Records.Reference(f.Name, o), fmt.Sprintf("it belongs to no attachment, and keeps the shared fact %s for ever", f.Name),
					"delete the file, then patchbay gc --apply")
			}
		}
	}
}

// strayMeshes finds routes, tunnels and facts that an agent left when it was uninstalled. If an
// agent is only stopped, its record exists, and its objects stay.
func (c *collector) strayMeshes() {
	options := mesh.Options{Paths: c.Paths}
	m, err := mesh.Open(options)
	if err != nil {
		c.fail(err)
		return
	}
	defer m.Close()
	stale, err := m.Stale()
	c.fail(err)
	for _, x := range stale {
		c.ageless("mesh", x.Name, x.Why, key("mesh", x.Name), func(ctx context.Context, _ *kernel.Kernel) error {
			m, err := mesh.Open(options)
			if err != nil {
				return err
			}
			defer m.Close()
			return m.Remove(ctx, x)
		})
	}
}

// strayAccepts finds rules of the reference's firewall plugin for addresses that are no longer
// used. Such a rule has an address but no name. gc removes the rule if host-local assigns
// addresses of that subnet, and neither a known attachment nor a namespace has the address. An
// ADD reserves the address before it makes the rule, so gc does not remove a new rule.
func (c *collector) strayAccepts() {
	addrs, err := iptnft.Forwarded(c.k.NFT)
	c.fail(err)
	for _, addr := range addrs {
		where, err := c.world.inUse(addr)
		known := c.any(func(a *Candidate) bool { return slices.Contains(a.Addrs, addr) })
		if err != nil || where != "" || known || !c.fromPool(addr) {
			continue
		}
		c.ageless("rules", "CNI-FORWARD of "+addr.String(), "no attachment has the address", key("accept", addr.String()),
			func(ctx context.Context, k *kernel.Kernel) error {
				k.NFT.Queue(iptnft.Forget(addr))
				return k.NFT.Commit(ctx)
			})
	}
}

// fromPool reports whether host-local has assigned an address near a. For that, the last address
// that host-local assigned in some range must be in the same /16 or /64. Without this test, gc
// would remove rules that an operator added by hand.
func (c *collector) fromPool(a netip.Addr) bool {
	bits := 16
	if a.Is6() {
		bits = 64
	}
	near, err := a.Prefix(bits)
	if err != nil {
		return false
	}
	found, _ := filepath.Glob(filepath.Join(c.Paths.Pools(), "*", "last_reserved_ip.*"))
	for _, path := range found {
		text, err := durable.Read(path)
		last, perr := ipam.ParseAddr(strings.TrimSpace(string(text)))
		if err == nil && perr == nil && last.IsValid() && near.Contains(last) {
			return true
		}
	}
	return false
}

// strayElements finds elements that belong to a network, such as a masquerade, and that no shared
// fact lists. Either the fact's file could not be read when its last holder was removed, or the
// run directory was lost. While an attachment of the network may live and may need an element of a lost fact, gc
// keeps the elements. An ADD writes the fact before the elements, and gather reads the elements first, so it has
// also read the fact of every living element.
func (c *collector) strayElements() {
	for _, e := range c.ofNetworks {
		needed := c.any(func(a *Candidate) bool { return a.Network == e.Comment && a.State != Dead && c.lostFacts(a) })
		if needed || holds(c.facts, e) {
			continue
		}
		c.ageless("element", nameOf(e), "no network has it", key("element", nameOf(e)),
			func(ctx context.Context, k *kernel.Kernel) error { return removeElement(ctx, k, e) })
	}
}

// lostFacts reports whether an attachment may hold a fact that is not there: a record of it names one, cannot be read or
// is lost.
func (c *collector) lostFacts(a *Candidate) bool {
	lost := func(name string) bool {
		return !slices.ContainsFunc(c.facts, func(f record.Fact) bool { return f.Name == name })
	}
	return len(a.records) == 0 || slices.ContainsFunc(a.records, func(k kept) bool { return k.torn }) || slices.ContainsFunc(a.shared, lost)
}

func holds(facts []record.Fact, e nft.Element) bool {
	return slices.ContainsFunc(facts, func(f record.Fact) bool {
		return slices.ContainsFunc(f.Elements, func(x nft.Element) bool {
			return x.Set == e.Set && bytes.Equal(x.Key, e.Key) && bytes.Equal(x.KeyEnd, e.KeyEnd)
		})
	})
}

// removeElement removes an element of an nftables set, unless a shared fact (record.Fact) lists
// the element by now. The kernel also removes the other elements in the same range, and
// removeElement adds these again. If an ADD has taken the fact meanwhile, removeElement adds the
// element again, too.
func removeElement(ctx context.Context, k *kernel.Kernel, e nft.Element) error {
	_, facts, err := k.Records.Facts()
	if err != nil || holds(facts, e) {
		return err
	}
	k.NFT.Remove(e)
	flows := e.Set == nft.SetFastPath
	for _, f := range facts {
		k.NFT.Add(slices.DeleteFunc(slices.Clone(f.Elements), func(x nft.Element) bool { return x.Set != e.Set })...)
		flows = flows && len(f.FastPath) == 0
	}
	if flows {
		k.NFT.Queue(nft.LeaveFastPath(e))
	}
	if err := k.NFT.Commit(ctx); err != nil {
		return err
	}
	if _, facts, err = k.Records.Facts(); err == nil && holds(facts, e) {
		k.NFT.Add(e)
		if flows {
			k.NFT.Queue(nft.EnsureFastPath())
		}
		err = k.NFT.Commit(ctx)
	}
	return err
}

// claimed reports whether a link belongs to a known attachment.
func (ev *evidence) claimed(index int) bool {
	return ev.any(func(a *Candidate) bool {
		return slices.ContainsFunc(a.links, func(l link) bool { return l.index == index })
	})
}

// strayIFBs finds ifb devices of the bandwidth plugins whose veth is gone. No filter redirects
// packets to them. An ADD makes the device before the filter, and a link has no date. So gc
// removes a device only when it has known the device for a while.
func (c *collector) strayIFBs() {
	host, err := c.k.Host()
	if err != nil {
		return // gather has reported the error
	}
	targets := redirects(host, c.links.All)
	for _, l := range c.links.All {
		at := l.Attrs()
		if l.Type() != "ifb" || !isOurKind(l) || at.Alias != "" || targets[at.Index] || c.claimed(at.Index) {
			continue
		}
		c.ageless("link", at.Name, "no traffic is redirected to it", key("ifb", fmt.Sprint(at.Name, at.Index)),
			func(_ context.Context, k *kernel.Kernel) error {
				host, err := k.Host()
				if err != nil {
					return err
				}
				return deleteLink(host, link{at.Name, at.Index})
			})
	}
}

// redirects returns the indexes of the links to which filters of other links redirect packets.
func redirects(host *nl.Conn, links []netlink.Link) map[int]bool {
	to := make(map[int]bool)
	for _, l := range links {
		filters, err := host.FilterList(l, netlink.MakeHandle(0xffff, 0)) // the ingress qdisc
		if err != nil {
			continue
		}
		for _, f := range filters {
			for _, a := range actions(f) {
				if m, ok := a.(*netlink.MirredAction); ok {
					to[m.Ifindex] = true
				}
			}
		}
	}
	return to
}

func actions(f netlink.Filter) []netlink.Action {
	switch f := f.(type) {
	case *netlink.U32:
		return f.Actions
	case *netlink.MatchAll:
		return f.Actions
	}
	return nil
}

// danglingVeths finds bridge ports whose other end is in a namespace that no process and no mount
// holds. Only an open file can keep such a namespace of a dead container, and its veth. These
// ports carry no owner, so gc only reports them.
func (c *collector) danglingVeths() {
	host, err := c.k.Host()
	if err != nil {
		return // gather has reported the error
	}
	var ports []netlink.Link
	for _, l := range c.links.All {
		at := l.Attrs()
		if l.Type() == "veth" && at.MasterIndex != 0 && at.Alias == "" && away(l) >= 0 && !c.claimed(at.Index) {
			ports = append(ports, l)
		}
	}
	if len(ports) == 0 {
		return
	}
	seen, err := spaces.IDs(c.Paths.Proc, host)
	if err != nil {
		c.fail(err)
		return
	}
	for _, l := range ports {
		if id := away(l); !seen[id] && host.Lives(id) {
			c.unsure("link", l.Attrs().Name, "a port of a bridge whose other end is in no namespace of a process or a mount; its owner is unknown (ip link del removes it)", "")
		}
	}
}

// away returns the host's id of the namespace of the veth's other end. If the other end is in the
// link's own namespace, or in one that is ending, the id is negative. The other end's interface
// index says nothing, because other namespaces use the same numbers.
func away(l netlink.Link) int { return int(int32(l.Attrs().NetNsID)) } // the kernel's id is signed
