// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/dhcprpc"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/ipam"
	"github.com/patchbay-net/patchbay/owner"
	"github.com/patchbay-net/patchbay/paths"
	"github.com/patchbay-net/patchbay/plugin/kernel"
	"github.com/patchbay-net/patchbay/spec"
)

// readFiles reads records and cached results, and the records of patchbay-cnm. The latter
// survive a reboot, and only patchbay-cnm can speak the protocol of Docker's drivers, so only
// it can detach what a driver attached.
func (c *collector) readFiles() {
	own, drivers := c.k.Records, record.OfDrivers(c.Paths.State)
	f := ReadFiles(c.Runtime, own, drivers)
	for _, err := range parts(f.Err) {
		if !errors.Is(err, chain.ErrBrokenCache) { // strays reports broken results
			c.fail(err)
		}
	}
	for _, at := range f.Attached {
		if spec.ValidateNetworkName(at.Network) == nil {
			c.addFilesOf(at, own, drivers)
		}
	}
	c.addTorn(f.Torn, own, false)
	c.addTorn(f.TornDrivers, drivers, true)
}

func (c *collector) addFilesOf(at *Attached, own, drivers *record.Dir) {
	a := c.get(at.Network, at.ContainerID, at.IfName)
	a.Pod = at.Pod()
	for _, r := range at.Records {
		a.keep(own, r.Owner, r.Plugin, kept{})
		a.at(r.NetNS, r.NetNSMark)
		a.addObject("record", r.Plugin, true)
		if r.DataDir != "" && r.Plugin == "host-local" {
			a.pools = append(a.pools, pool{r.DataDir, r.Network})
		}
	}
	for _, r := range at.Drivers {
		a.keep(drivers, r.Owner, r.Plugin, kept{driver: true})
		a.at(r.NetNS, r.NetNSMark)
		a.attached(r.Asked, r.Plugin)
	}
	a.at(at.NetNS, nil)
	if !at.InCache {
		return
	}
	a.cached = &at.Cached
	a.seen(at.Since)
	a.addObject("cached result", at.Network+"-"+at.ContainerID+"-"+at.IfName, false)
	if at.Result != nil {
		for _, ip := range at.Result.IPs {
			a.addr(ip.Address.Addr())
		}
	}
}

func (c *collector) addTorn(torn []record.Torn, dir *record.Dir, ofDrivers bool) {
	for _, t := range torn {
		a := c.tornOwner(t)
		a.keep(dir, t.Owner, t.Plugin, kept{torn: true, driver: ofDrivers})
		a.addObject("torn record", t.Plugin, !ofDrivers)
	}
}

// keep adds a record that exists.
func (a *Candidate) keep(dir *record.Dir, o owner.Key, plugin string, k kept) {
	k.plugin, k.path = plugin, filepath.Join(dir.Path, "attachments", a.Network, string(o)+"."+plugin)
	a.records = append(a.records, k)
	a.seen(mtime(k.path))
}

// attached adds what a record of patchbay-cnm says about the attachment.
func (a *Candidate) attached(d *record.Driver, plugin string) {
	a.addObject("record", fmt.Sprintf("%s (driver %s)", plugin, d), false)
	for _, p := range d.Prefixes() {
		a.addr(p.Addr())
	}
	if d.Ended {
		a.pendingDriver = d.String()
	}
}

// tornOwner returns the attachment that a truncated record belongs to. It takes the names from
// the record's path.
func (c *collector) tornOwner(t record.Torn) *Candidate {
	id, ifName := kernel.Names(c.Paths, t.Network, t.Owner, nil)
	a := c.owned(t.Owner)
	a.Network = t.Network
	if ifName != "" {
		a.ContainerID, a.IfName = id, ifName
	}
	return a
}

// parts returns the errors that errors.Join put into err.
func parts(err error) []error {
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		return joined.Unwrap()
	}
	return []error{err}
}

// readPools reads host-local's address files, in its usual directory and in the directories
// that records name.
func (c *collector) readPools(ctx context.Context) {
	base := filepath.Join(c.Paths.CNI, "networks")
	entries, err := os.ReadDir(base)
	c.fail(err)
	pools := make(map[pool]bool)
	for _, e := range entries {
		if e.IsDir() && spec.ValidateNetworkName(e.Name()) == nil {
			pools[pool{base, e.Name()}] = true
		}
	}
	for _, a := range c.all {
		for _, p := range a.pools {
			pools[p] = true
		}
		a.pools = nil
	}
	for p := range pools {
		if err := c.readPool(ctx, p); err != nil {
			c.fail(fmt.Errorf("read addresses of %s: %w", p.network, err))
		}
	}
}

func (c *collector) readPool(ctx context.Context, p pool) error {
	tx, err := c.store(p).Begin(ctx, ipam.ReadOnly)
	if err != nil {
		return err
	}
	defer tx.Close()
	list, err := tx.List(false)
	if err != nil {
		return err
	}
	for _, r := range list {
		if spec.ValidateContainerID(r.Holder.ID) != nil {
			continue // an operator has reserved the address
		}
		a := c.get(p.network, r.Holder.ID, r.Holder.IfName)
		if !slices.Contains(a.pools, p) {
			a.pools = append(a.pools, p)
		}
		a.addr(r.Addr)
		a.addObject("address", r.Addr.String(), false)
		a.seen(mtime(p.file(r.Addr)))
	}
	return nil
}

func (c *collector) store(p pool) *ipam.FileStore {
	return &ipam.FileStore{DataDir: p.dataDir, Network: p.network, IndexDir: filepath.Join(c.Paths.Run, "ipam"), Boot: c.boot}
}

// readLeases reads the files of the DHCP keeper. A running keeper ends the lease of an
// interface that is gone, so this finds leases only of a keeper that no longer runs. gc does
// not send a release: the lease expires on the server.
func (c *collector) readLeases() {
	found, err := filepath.Glob(filepath.Join(c.Paths.Run, dhcprpc.LeaseDir, "*.json"))
	c.fail(err)
	for _, path := range found {
		data, err := durable.Read(path)
		c.fail(err)
		var lease struct {
			Network     string `json:"network"`
			ContainerID string `json:"containerID"`
			IfName      string `json:"ifname"`
			Place       struct {
				NetNS string `json:"netns"`
			} `json:"place"`
		}
		o := owner.Key(strings.TrimSuffix(filepath.Base(path), ".json"))
		if json.Unmarshal(data, &lease) != nil || o != owner.Of(lease.Network, lease.ContainerID, lease.IfName) ||
			spec.ValidateNetworkName(lease.Network) != nil {
			continue // the keeper reports a broken file
		}
		a := c.get(lease.Network, lease.ContainerID, lease.IfName)
		a.at(lease.Place.NetNS, nil)
		a.seen(mtime(path))
		a.files = append(a.files, path)
		a.addObject("dhcp lease", filepath.Base(path), true)
	}
}

// driverState is the state directory of `patchbayd docker`.
func driverState(p paths.Paths) string { return filepath.Join(p.State, "docker") }

// readDriver finds the container ids of attachments that the Docker driver still has to detach.
// The driver's files are named after the id with which it calls the plugins. That id is the
// endpoint's, or one made for an address whose endpoint does not exist yet, so `docker ps`
// never lists it. Other vendors' plugins keep no record of the driver's temporary namespaces,
// so only these files protect such attachments.
func (c *collector) readDriver() {
	c.driver = make(map[string]bool)
	for _, dir := range [...]string{"endpoints", "leases"} {
		entries, err := os.ReadDir(filepath.Join(driverState(c.Paths), dir))
		c.fail(err)
		for _, e := range entries {
			if !durable.IsTemp(e.Name()) {
				c.driver[e.Name()] = true
			}
		}
	}
}

// addFiles finds the files that plugins name after the container's id and the interface.
func (c *collector) addFiles(a *Candidate) {
	if a.ContainerID == "" || a.IfName == "" {
		return
	}
	path := filepath.Join(c.Paths.RunCNI, "tuning", a.ContainerID+"_"+a.IfName+".json")
	if _, err := os.Lstat(path); err == nil {
		a.files = append(a.files, path)
		a.addObject("file", path, false)
	}
}
