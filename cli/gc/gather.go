// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nft/iptnft"
	"github.com/patchbay-net/patchbay/internal/order"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/ipam"
	"github.com/patchbay-net/patchbay/plugin/kernel"
	"github.com/patchbay-net/patchbay/spec"
)

// evidence is everything that names an attachment, by owner.
type evidence struct {
	k     *kernel.Kernel
	rt    *chain.Runtime
	paths paths.Paths
	boot  ipam.Boot

	all map[owner.Key]*Attachment

	ofNetworks []nft.Element   // elements of networks
	driver     map[string]bool // container ids that `patchbayd docker` will detach

	errs []error // what could not be read; gc judges the rest anyway
}

// gather reads kernel objects before files: an ADD writes its record first and a DEL
// removes it last, so a kernel object without a record has lost it.
func (ev *evidence) gather(ctx context.Context) []*Attachment {
	ev.all = make(map[owner.Key]*Attachment)
	elems, err := ev.k.OwnedElements()
	ev.fail(err)
	ev.ofNetworks, err = ev.k.NFT.OfNetworks()
	ev.fail(err)
	links, err := ev.hostLinks()
	ev.fail(err)
	accepted, err := iptnft.Addressed(ev.k.NFT)
	ev.fail(err)
	holders, _, err := ev.k.Records.Facts()
	ev.fail(err)
	ev.readRecords()
	ev.readDrivers()
	ev.readCache()
	ev.readPools(ctx)
	ev.readLeases()
	ev.readReference()
	ev.readDriver()
	ev.addElements(elems)
	ev.addLinks(links)
	ev.addFacts(holders)
	ev.addAccepted(accepted)
	for _, a := range ev.all {
		ev.addFiles(a)
		ev.inherit(a)
	}
	list := slices.Collect(maps.Values(ev.all))
	order.By(list, func(x, y *Attachment) int { return strings.Compare(x.Name(), y.Name()) })
	return list
}

func (ev *evidence) fail(err error) {
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		ev.errs = append(ev.errs, err)
	}
}

// get returns the attachment with these names. Old files and iptables' comments omit the
// interface name: their attachments have a key of their own.
func (ev *evidence) get(network, id, ifName string) *Attachment {
	a := ev.owned(owner.Of(network, id, ifName))
	a.Network, a.ContainerID, a.IfName = network, id, ifName
	return a
}

func (ev *evidence) owned(o owner.Key) *Attachment {
	if ev.all[o] == nil {
		ev.all[o] = &Attachment{Owner: o, Objects: []Object{}}
	}
	return ev.all[o]
}

func (ev *evidence) readRecords() {
	records, torn, err := ev.k.Records.Scan("")
	ev.fail(err)
	for _, r := range records {
		a := ev.get(r.Network, r.ContainerID, r.IfName)
		a.records = append(a.records, r)
		a.at(r.NetNS, r.NetNSMark)
		a.addObject("record", r.Plugin, true)
		a.seen(ev.mtime(filepath.Join(ev.paths.Run, "attachments", r.Network, string(r.Owner)+"."+r.Plugin)))
		if r.DataDir != "" && r.Plugin == "host-local" {
			a.pools = append(a.pools, pool{r.DataDir, r.Network})
		}
	}
	for _, t := range torn {
		a := ev.tornOwner(t)
		a.torn = append(a.torn, t)
		a.addObject("torn record", t.Plugin, true)
		path := filepath.Join(ev.paths.Run, "attachments", t.Network, string(t.Owner)+"."+t.Plugin)
		a.tornFiles = append(a.tornFiles, path)
		a.seen(ev.mtime(path))
	}
}

// tornOwner returns the attachment of a record of which only the path is readable.
func (ev *evidence) tornOwner(t record.Torn) *Attachment {
	id, ifName := kernel.Names(ev.paths, t.Network, t.Owner, nil)
	a := ev.owned(t.Owner)
	a.Network = t.Network
	if ifName != "" {
		a.ContainerID, a.IfName = id, ifName
	}
	return a
}

func (ev *evidence) mtime(path string) time.Time {
	fi, err := os.Lstat(path)
	if err != nil {
		return time.Time{}
	}
	return fi.ModTime()
}

// readCache reads the results that every runtime based on libcni caches.
func (ev *evidence) readCache() {
	list, err := ev.rt.Attachments("")
	for _, err := range parts(err) {
		if !errors.Is(err, chain.ErrBrokenCache) { // strays reports those
			ev.fail(err)
		}
	}
	for i := range list {
		c := &list[i]
		if c.Network == "" || spec.ValidateNetworkName(c.Network) != nil {
			continue // the bare result of an old runtime names no attachment
		}
		a := ev.get(c.Network, c.ContainerID, c.IfName)
		a.cached = c
		a.at(c.NetNS, nil)
		a.seen(c.Since)
		a.addObject("cached result", c.Network+"-"+c.ContainerID+"-"+c.IfName, false)
		if c.Result == nil {
			continue
		}
		for _, ip := range c.Result.IPs {
			a.addr(ip.Address.Addr())
		}
	}
}

// readPools reads host-local's address files, in the usual directory and in those that
// records name.
func (ev *evidence) readPools(ctx context.Context) {
	base := filepath.Join(ev.paths.CNI, "networks")
	entries, err := os.ReadDir(base)
	ev.fail(err)
	pools := make(map[pool]bool)
	for _, e := range entries {
		if e.IsDir() && spec.ValidateNetworkName(e.Name()) == nil {
			pools[pool{base, e.Name()}] = true
		}
	}
	for _, a := range ev.all {
		for _, p := range a.pools {
			pools[p] = true
		}
		a.pools = nil
	}
	for p := range pools {
		ev.fail(ev.readPool(ctx, p))
	}
}

func (ev *evidence) readPool(ctx context.Context, p pool) error {
	tx, err := ev.store(p).Begin(ctx, ipam.ReadOnly)
	if err != nil {
		return fmt.Errorf("read addresses of %s: %w", p.network, err)
	}
	defer tx.Close()
	list, err := tx.List(false)
	if err != nil {
		return fmt.Errorf("read addresses of %s: %w", p.network, err)
	}
	for _, r := range list {
		if spec.ValidateContainerID(r.Owner.ID) != nil {
			continue // an operator's block
		}
		a := ev.get(p.network, r.Owner.ID, r.Owner.IfName)
		if !slices.Contains(a.pools, p) {
			a.pools = append(a.pools, p)
		}
		a.addr(r.Addr)
		a.addObject("address", r.Addr.String(), false)
		a.seen(ev.mtime(filepath.Join(p.dataDir, p.network, r.Addr.String())))
	}
	return nil
}

func (ev *evidence) store(p pool) *ipam.FileStore {
	return &ipam.FileStore{DataDir: p.dataDir, Network: p.network, IndexDir: filepath.Join(ev.paths.Run, "ipam"), Boot: ev.boot}
}

func (ev *evidence) addElements(elems []nft.Element) {
	for _, e := range elems {
		key, _ := nft.OwnerOf(e.Comment)
		a := ev.owned(owner.Key(key))
		a.elements = append(a.elements, e)
		if addr, ok := e.Container(); ok {
			a.addr(addr)
		}
		named := e
		named.Comment = ""
		a.addObject("element", named.String(), true)
		a.namedBy(e.Comment)
	}
}

// addAccepted finds the attachments that iptables accepts by address.
func (ev *evidence) addAccepted(comments []string) {
	for _, c := range comments {
		key, ok := nft.OwnerOf(c)
		if !ok {
			continue // an operator's
		}
		a := ev.owned(owner.Key(key))
		a.addObject("rules", "PATCHBAY-ADDRESSES of "+key, true)
		a.namedBy(c)
	}
}

// namedBy takes the names from a comment, unless it is truncated.
func (a *Attachment) namedBy(comment string) {
	_, rest, _ := strings.Cut(comment, " ")
	parts := strings.Split(rest, "/")
	if a.ContainerID == "" && len(parts) == 3 && owner.Of(parts[0], parts[1], parts[2]) == a.Owner {
		a.Network, a.ContainerID, a.IfName = parts[0], parts[1], parts[2]
	}
}

func (ev *evidence) addLinks(links []found) {
	for _, l := range links {
		a := ev.all[l.owner]
		if l.owner == "" {
			a = ev.namedIn(l)
		} else if a == nil {
			a = ev.owned(l.owner)
		}
		if a != nil {
			a.links = append(a.links, l.link)
			a.addObject("link", l.name, true)
		}
	}
}

func (ev *evidence) addFacts(holders map[string][]owner.Key) {
	for name, owners := range holders {
		for _, o := range owners {
			if !o.Valid() {
				continue
			}
			a := ev.owned(o)
			a.facts = append(a.facts, name)
			a.addObject("shared fact", name, true)
		}
	}
}

// addFiles finds the files that plugins name after the container's id.
func (ev *evidence) addFiles(a *Attachment) {
	if a.ContainerID == "" || a.IfName == "" {
		return
	}
	path := filepath.Join(ev.paths.RunCNI, "tuning", a.ContainerID+"_"+a.IfName+".json")
	if _, err := os.Lstat(path); err == nil {
		a.files = append(a.files, path)
		a.addObject("file", path, false)
	}
}

// inherit applies to evidence without an interface name, old address files and rules of
// iptables: it lives and dies with the container's other attachments.
func (ev *evidence) inherit(a *Attachment) {
	if a.IfName != "" || a.ContainerID == "" {
		return
	}
	for _, b := range ev.all {
		if b.IfName != "" && b.Network == a.Network && b.ContainerID == a.ContainerID {
			for _, path := range b.NetNS {
				for _, mark := range b.marksOf(path) {
					a.at(path, mark)
				}
			}
			a.seen(b.Since)
		}
	}
}

// parts returns the errors that were joined into one.
func parts(err error) []error {
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		return joined.Unwrap()
	}
	return []error{err}
}

func readSmall(path string) (string, error) {
	text, err := durable.Read(path)
	return strings.TrimSpace(string(text)), err
}
