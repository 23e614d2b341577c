// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

const psLong = `List the attachments of this node, from the cached results of every runtime
that keeps them in the usual place and from the records of our plugins, those
of patchbay-cnm too, with the namespace each lives in and a process that is
there.`

type psCommand struct {
	app     *app
	Network string `long:"network" value-name:"NAME" description:"only this network"`
	JSON    bool   `long:"json" description:"print a JSON array"`
}

// standing is an attachment as this node knows it.
type standing struct {
	Network     string    `json:"network"`
	ContainerID string    `json:"containerID"`
	IfName      string    `json:"ifname"`
	NetNS       string    `json:"netns,omitempty"`
	Alive       bool      `json:"alive"` // the namespace exists
	PID         int       `json:"pid,omitempty"`
	Process     string    `json:"process,omitempty"`
	Addresses   []string  `json:"addresses,omitempty"`
	HostLinks   []string  `json:"hostLinks,omitempty"`
	Plugins     []string  `json:"plugins,omitempty"` // that keep a record
	Driver      string    `json:"driver,omitempty"`  // of Docker, that attached it
	Since       time.Time `json:"since,omitzero"`
	Cached      bool      `json:"cached"` // a runtime keeps its result
}

func (s *standing) key() spec.Attachment {
	return spec.Attachment{ContainerID: s.ContainerID, IfName: s.IfName}
}

// Execute prints what can be read; what cannot is a warning.
func (c *psCommand) Execute(args []string) error {
	c.app.json = c.JSON
	if err := noArgs(args); err != nil {
		return err
	}
	list, err := c.app.standing(c.Network)
	c.app.warn(err)
	c.app.findProcesses(list)
	if c.JSON {
		return c.app.printJSON(list)
	}
	t := newTable("NETWORK", "CONTAINER", "IFNAME", "ADDRESSES", "NAMESPACE", "PROCESS")
	for _, s := range list {
		where := s.NetNS
		if !s.Alive {
			where += " (gone)"
		}
		process := s.Process
		if s.PID != 0 {
			process = fmt.Sprintf("%d %s", s.PID, s.Process)
		}
		t.row(s.Network, s.ContainerID, s.IfName, strings.Join(s.Addresses, ","), where, process)
	}
	return c.app.print(t.String())
}

// standing joins cached results and records, of one network or of all ("").
func (a *app) standing(network string) ([]*standing, error) {
	all := map[owner.Key]*standing{}
	get := func(network, id, ifName string) *standing {
		key := owner.Of(network, id, ifName)
		if all[key] == nil {
			all[key] = &standing{Network: network, ContainerID: id, IfName: ifName}
		}
		return all[key]
	}
	cached, cerr := a.runtime(nil).Attachments("")
	for _, c := range cached {
		s := get(c.Network, c.ContainerID, c.IfName)
		s.NetNS, s.Since, s.Cached = c.NetNS, c.Since, true
		s.addresses(c.Result)
	}
	records, rerr := record.New(a.paths.Run).List("")
	for _, r := range records {
		s := get(r.Network, r.ContainerID, r.IfName)
		s.NetNS = cmp.Or(s.NetNS, r.NetNS)
		s.HostLinks = append(s.HostLinks, r.Links...)
		s.Plugins = append(s.Plugins, r.Plugin)
	}
	derr := a.ofDrivers(get)
	list := []*standing{}
	for _, s := range slices.Collect(maps.Values(all)) {
		if network == "" || s.Network == network {
			slices.Sort(s.Plugins)
			s.Alive = alive(s.NetNS)
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(x, y *standing) int {
		return cmp.Or(cmp.Compare(x.Network, y.Network), cmp.Compare(x.ContainerID, y.ContainerID), cmp.Compare(x.IfName, y.IfName))
	})
	return list, errors.Join(cerr, rerr, derr)
}

// ofDrivers adds what patchbay-cnm had Docker's drivers attach. What is detached
// and only waits for its driver is no attachment any more: gc tells of it.
func (a *app) ofDrivers(get func(network, id, ifName string) *standing) error {
	records, err := record.OfDrivers(a.paths.State).List("")
	ended := map[owner.Key]bool{}
	found := make([]*record.Driver, len(records))
	for i, r := range records {
		d, derr := r.DriverOf()
		err = errors.Join(err, derr)
		if found[i] = d; d != nil {
			ended[r.Owner] = ended[r.Owner] || d.Ended
		}
	}
	for i, r := range records {
		if d := found[i]; d != nil && !ended[r.Owner] {
			get(r.Network, r.ContainerID, r.IfName).byDriver(r, d)
		}
	}
	return err
}

func (s *standing) byDriver(r *record.Record, d *record.Driver) {
	s.NetNS = cmp.Or(s.NetNS, r.NetNS)
	s.Plugins = append(s.Plugins, r.Plugin)
	if d.Interface != nil {
		s.Driver = d.String()
	}
	for _, p := range d.Prefixes() {
		if !s.Cached && !slices.Contains(s.Addresses, p.String()) {
			s.Addresses = append(s.Addresses, p.String())
		}
	}
}

func (s *standing) addresses(r *spec.Result) {
	if r == nil {
		return
	}
	for _, ip := range r.IPs {
		s.Addresses = append(s.Addresses, ip.Address.String())
	}
}

// alive says whether a namespace exists. One that cannot be looked at counts
// as alive: nothing is removed on a guess.
func alive(path string) bool {
	if path == "" {
		return false
	}
	ns, err := netns.Open(path)
	if err != nil {
		return !netns.Gone(err)
	}
	ns.Close() //nolint:errcheck // read only
	return true
}

// findProcesses notes the first process in each namespace: one pass over /proc.
func (a *app) findProcesses(list []*standing) {
	byNS := map[netns.ID][]*standing{}
	for _, s := range list {
		if id, ok := nsID(s.NetNS); ok && s.Alive {
			byNS[id] = append(byNS[id], s)
		}
	}
	pids, err := filepath.Glob(filepath.Join(a.paths.Proc, "[0-9]*"))
	if err != nil || len(byNS) == 0 {
		return
	}
	for _, dir := range pids {
		id, ok := nsID(filepath.Join(dir, "ns/net"))
		there := byNS[id]
		pid, err := strconv.Atoi(filepath.Base(dir))
		if !ok || len(there) == 0 || err != nil || there[0].PID != 0 && there[0].PID < pid {
			continue
		}
		comm, err := os.ReadFile(filepath.Join(dir, "comm"))
		for _, s := range there {
			if err == nil {
				s.PID, s.Process = pid, strings.TrimSpace(string(comm))
			}
		}
	}
}

func nsID(path string) (netns.ID, bool) {
	var st unix.Stat_t
	if path == "" || unix.Stat(path, &st) != nil {
		return netns.ID{}, false
	}
	return netns.ID{Dev: uint64(st.Dev), Ino: st.Ino}, true //nolint:unconvert // Dev is 32 bits wide on some architectures
}
