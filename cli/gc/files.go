// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/claim"
	"github.com/patchbay-net/patchbay/internal/dhcprpc"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/inventory"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/traces"
	"github.com/patchbay-net/patchbay/ipam"
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
		a.keep(own, r.Owner, r.Head(), kept{plugin: r.Plugin})
		a.shared = append(a.shared, r.Shared...)
		a.addObject("record", r.Plugin, true)
		if r.DataDir != "" && c.s.IsIPAM(r.Plugin) {
			a.pools = append(a.pools, pool{r.DataDir, r.Network})
		}
	}
	for _, r := range at.Drivers {
		a.keep(drivers, r.Owner, r.Head(), kept{plugin: r.Plugin, driver: true, ended: r.Asked.Ended})
		a.attached(r.Asked, r.Plugin)
	}
	a.evidence.Space(at.NetNS, nil)
	if !at.InCache {
		return
	}
	a.cached = &at.Cached
	a.evidence.Date(at.Since)
	a.addObject("cached result", at.Network+"-"+at.ContainerID+"-"+at.IfName, false)
	if at.Result != nil {
		for _, ip := range at.Result.IPs {
			a.addr(ip.Address.Addr())
		}
	}
}

func (c *collector) addTorn(torn []record.Torn, dir *record.Dir, ofDrivers bool) {
	for _, t := range torn {
		a, p := c.tornOwner(t), c.s.Plugin(t.Plugin)
		a.keep(dir, t.Owner, nil, kept{plugin: t.Plugin, torn: true, driver: ofDrivers, marked: p != nil && p.Marked})
		a.addObject("torn record", t.Plugin, !ofDrivers)
	}
}

// keep adds a record that exists. head is nil if it cannot be read.
func (a *Candidate) keep(dir *record.Dir, o owner.Key, head *claim.Head, k kept) {
	k.path = dir.File(a.Network, o, k.plugin)
	a.records = append(a.records, k)
	a.evidence.Record(head, dir.Since(a.Network, o, k.plugin))
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

// tornOwner returns the attachment to which an unreadable record belongs. The record's path has
// the names.
func (c *collector) tornOwner(t record.Torn) *Candidate {
	a := c.owned(t.Owner)
	a.Network = t.Network
	if names := c.k.Traces().Names(t.Network, t.Owner, nil); names.IfName != "" {
		a.ContainerID, a.IfName = names.ContainerID, names.IfName
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
	base := c.Paths.Pools()
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
	list, err := traces.Reserved(ctx, c.store(p), ipam.Holder{})
	if err != nil {
		return err
	}
	for _, r := range list {
		if spec.ValidateContainerID(r.Holder.ID) != nil {
			continue // an operator reserved the address
		}
		a := c.get(p.network, r.Holder.ID, r.Holder.IfName)
		if !slices.Contains(a.pools, p) {
			a.pools = append(a.pools, p)
		}
		a.addr(r.Addr)
		a.evidence.Outlived = a.evidence.Outlived || r.EarlierBoot
		a.addObject("address", r.Addr.String(), false)
		a.evidence.Date(r.Since)
	}
	return nil
}

func (c *collector) store(p pool) *ipam.FileStore {
	s := traces.Pool(c.Paths, p.network, p.dataDir)
	s.Boot = c.boot
	return s
}

// readLeases reads the files of the DHCP keeper. A running keeper ends the lease of an interface
// that is gone. So readLeases finds only leases of a keeper that no longer runs. gc sends no
// release; the lease expires on the server.
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
		a.evidence.Space(lease.Place.NetNS, nil)
		if fi, err := os.Lstat(path); err == nil {
			a.evidence.Date(fi.ModTime())
		}
		a.files = append(a.files, path)
		a.addObject("dhcp lease", filepath.Base(path), true)
	}
}

// driverState is the state directory of `patchbayd docker`.
func driverState(p paths.Paths) string { return filepath.Join(p.State, "docker") }

// readDriver finds the container ids of attachments that the Docker driver still has to detach.
// The driver's files are named after the id with which it calls the plugins. That id is the
// endpoint's, or one made for an address whose endpoint does not exist yet, so `docker ps` never
// lists it. Other vendors' plugins keep no record of the driver's temporary namespaces. So only
// these files protect such attachments.
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

// addLeft finds the files that plugins have left.
func (c *collector) addLeft(a *Candidate) {
	for _, path := range c.k.Traces().Files(spec.AttachmentKey{ContainerID: a.ContainerID, IfName: a.IfName}) {
		a.files = append(a.files, path)
		a.addObject("file", path, false)
	}
}

// Attached is what files say about one attachment, dead or alive. `ps`, doctor and gc begin
// with it.
type Attached struct {
	chain.Cached // if no runtime has cached a result, only the names and the namespace
	InCache      bool
	Records      []*record.Record
	Drivers      []DriverRecord
}

// DriverRecord is a record of patchbay-cnm, with what the plugin requested from a driver.
type DriverRecord struct {
	*record.Record
	Asked *record.Driver
}

// Files is what the files of a node say about its attachments.
type Files struct {
	Attached          []*Attached   // in any order
	Torn, TornDrivers []record.Torn // records that cannot be used
	Err               error         // what else cannot be read
}

// ReadFiles joins the results that runtimes have cached, our records, and those of patchbay-cnm
// unless drivers is nil.
func ReadFiles(rt *chain.Runtime, records, drivers *record.Dir) (f Files) {
	all := make(map[owner.Key]*Attached)
	get := func(c chain.Cached) *Attached {
		key := owner.Of(c.Network, c.ContainerID, c.IfName)
		if all[key] == nil {
			all[key] = &Attached{Cached: c}
			f.Attached = append(f.Attached, all[key])
		}
		all[key].NetNS = cmp.Or(all[key].NetNS, c.NetNS)
		return all[key]
	}
	of := func(r *record.Record) *Attached {
		return get(chain.Cached{Network: r.Network, Attachment: chain.Attachment{ContainerID: r.ContainerID, IfName: r.IfName, NetNS: r.NetNS}})
	}
	cached, err := rt.Attachments("")
	for _, c := range cached {
		get(c).InCache = true
	}
	list, torn, rerr := records.Scan("")
	for _, r := range list {
		a := of(r)
		a.Records = append(a.Records, r)
	}
	for _, a := range f.Attached {
		a.NetNS = a.Place()
	}
	f.Torn, f.Err = torn, errors.Join(err, rerr)
	if drivers == nil {
		return f
	}
	list, f.TornDrivers, err = drivers.Scan("")
	for _, r := range list {
		d, err := r.DriverOf()
		if d == nil {
			f.TornDrivers = append(f.TornDrivers, record.Torn{Network: r.Network, Owner: r.Owner, Plugin: r.Plugin, Err: err})
			continue
		}
		a := of(r)
		a.Drivers = append(a.Drivers, DriverRecord{r, d})
	}
	f.Err = errors.Join(f.Err, err)
	return f
}

// Errors returns all that cannot be read or used.
func (f *Files) Errors() error {
	err := f.Err
	for _, t := range append(f.Torn, f.TornDrivers...) {
		err = errors.Join(err, t.Err)
	}
	return err
}

// Pod returns the Kubernetes pod of the attachment, from the cached result or a record.
func (a *Attached) Pod() string {
	pod := a.Cached.Pod()
	for _, r := range a.Records {
		pod = cmp.Or(pod, r.Pod)
	}
	return pod
}

// Namespace judges the namespaces that the files name.
func (a *Attached) Namespace(judge *life.Judge) life.State {
	e := inventory.Evidence{At: judge.At}
	for _, r := range a.Records {
		e.Record(r.Head(), time.Time{})
	}
	for _, r := range a.Drivers {
		e.Record(r.Head(), time.Time{})
	}
	e.Space(a.NetNS, nil)
	return e.Namespace().State
}
