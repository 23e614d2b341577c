// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"encoding/json"
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

	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/order"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/owner"
	"github.com/patchbay-net/patchbay/spec"
)

const psLong = `List the attachments of this node, each with its namespace and a process in
it. They are found in the results that runtimes cache in the usual directory,
and in the records of our plugins, including patchbay-cnm.`

type psCommand struct {
	app     *app
	Network string `long:"network" value-name:"NAME" description:"only this network"`
	NoTrunc bool   `long:"no-trunc" description:"print ids and namespaces whole"`
	JSON    bool   `long:"json" description:"print a JSON array, with everything that is known"`
}

// standing is an attachment of this node.
type standing struct {
	Network     string        `json:"network"`
	ContainerID string        `json:"containerID"`
	IfName      string        `json:"ifname"`
	Pod         string        `json:"pod,omitempty"` // of Kubernetes: "namespace/name"
	NetNS       string        `json:"netns,omitempty"`
	Alive       bool          `json:"alive"` // its namespace exists
	PID         int           `json:"pid,omitempty"`
	Process     string        `json:"process,omitempty"`
	Addresses   []string      `json:"addresses,omitempty"`
	MAC         string        `json:"mac,omitempty"`
	Ports       []portMapping `json:"ports,omitempty"`
	HostLinks   []string      `json:"hostLinks,omitempty"`
	Plugins     []string      `json:"plugins,omitempty"` // the plugins that keep a record of it
	Driver      string        `json:"driver,omitempty"`  // the Docker driver that attached it
	Since       time.Time     `json:"since,omitzero"`
	Cached      bool          `json:"cached"` // a runtime has cached its result

	Interfaces []spec.Interface `json:"interfaces,omitempty"` // from the result: the host's and the container's
	Routes     []spec.Route     `json:"routes,omitempty"`

	config []byte // the configuration of the ADD

	state life.State
	mark  *life.Mark // identifies NetNS, if a record does
}

func (s *standing) key() spec.AttachmentKey {
	return spec.AttachmentKey{ContainerID: s.ContainerID, IfName: s.IfName}
}

// Execute prints the attachments whose files it can read. It fails if only root could read one
// of the files, because a short or empty table would mean that nothing else is attached.
func (c *psCommand) Execute([]string) error {
	list, unseen := c.app.seen(c.Network)
	c.app.findProcesses(list)
	heads := []string{"NETWORK", "CONTAINER", "IFNAME", "ADDRESSES", "PORTS", "NAMESPACE", "PROCESS"}
	pods := slices.ContainsFunc(list, func(s *standing) bool { return s.Pod != "" })
	if pods {
		heads = slices.Insert(heads, 1, "POD")
	}
	t := newTable(heads...)
	for _, s := range list {
		row := c.row(s)
		if pods {
			row = slices.Insert(row, 1, s.Pod)
		}
		t.row(row...)
	}
	return errors.Join(c.app.show(list, t.String()), unseen)
}

// shortID is how many characters of a container's id are printed, as in podman and Docker.
const shortID = 12

// row returns the cells for one attachment. A row with one published port and one address per
// family fits in 100 columns. A namespace below /run/netns is shown by its name, which our
// commands accept.
func (c *psCommand) row(s *standing) []string {
	id, where := s.ContainerID, s.NetNS
	if name, ok := strings.CutPrefix(where, c.app.paths.NetNS+"/"); ok && !c.NoTrunc {
		where = name
	}
	if !c.NoTrunc {
		id, where = id[:min(len(id), shortID)], shortened(where, 20)
	}
	switch {
	case !s.Alive:
		where += " (gone)"
	case s.state == life.Unsure:
		where += " (unsure)" // gc prints the reason
	}
	process := s.Process
	if s.PID != 0 {
		process = fmt.Sprintf("%d %s", s.PID, s.Process)
	}
	var addrs []string
	for _, a := range s.Addresses {
		addr, _, _ := strings.Cut(a, "/")
		addrs = append(addrs, addr)
	}
	return []string{s.Network, id, s.IfName, strings.Join(addrs, ","), portsText(s.Ports), where, process}
}

// shortened cuts characters from the middle of a word, because both ends of a path tell
// something.
func shortened(word string, most int) string {
	if len(word) <= most {
		return word
	}
	return word[:most/2-1] + ".." + word[len(word)-most/2+1:]
}

// seen returns the attachments of a network. If a file cannot be read, seen prints a warning.
// If only root could read it, seen returns an error.
func (a *app) seen(network string) (list []*standing, unseen error) {
	list, err := a.standing(network)
	if unseen = rootless(a.command(), err); unseen == err { //nolint:errorlint // the same error, not a wrapped one
		a.warn(err)
		return list, nil
	}
	return list, unseen
}

// standing merges cached results and records into one list, for one network or, if network is
// "", for all.
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
		s.NetNS, s.Since, s.Cached, s.config = c.NetNS, c.Since, true, c.Config
		s.Pod = c.Pod()
		s.result(c.Result)
		s.published(c.Capabilities)
	}
	records, rerr := record.New(a.paths.Run).List("")
	for _, r := range records {
		s := get(r.Network, r.ContainerID, r.IfName)
		s.at(r.NetNS, r.NetNSMark)
		s.Pod = cmp.Or(s.Pod, r.Pod)
		s.HostLinks = append(s.HostLinks, r.Links...)
		s.Plugins = append(s.Plugins, r.Plugin)
	}
	derr := a.ofDrivers(get)
	list := []*standing{}
	for _, s := range slices.Collect(maps.Values(all)) {
		if network == "" || s.Network == network {
			slices.Sort(s.Plugins)
			s.state, _ = life.AtForRemoval(s.NetNS, s.mark, a.paths.Proc, a.paths.Run)
			s.Alive = s.state == life.Alive || s.state == life.Unsure && s.NetNS != ""
			list = append(list, s)
		}
	}
	order.By(list, func(x, y *standing) int {
		return cmp.Or(cmp.Compare(x.Network, y.Network), cmp.Compare(x.ContainerID, y.ContainerID), cmp.Compare(x.IfName, y.IfName))
	})
	return list, errors.Join(cerr, rerr, derr)
}

// ofDrivers adds the attachments that patchbay-cnm made through Docker's drivers. It omits one
// that has been detached and only waits for its driver: gc reports that.
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

// result copies interfaces, routes, addresses and MAC from the result of the ADD.
func (s *standing) result(r *spec.Result) {
	if r == nil {
		return
	}
	s.Interfaces, s.Routes = r.Interfaces, r.Routes
	for _, ip := range r.IPs {
		s.Addresses = append(s.Addresses, ip.Address.String())
	}
	for _, i := range r.Interfaces {
		if i.Sandbox != "" && i.Name == s.IfName {
			s.MAC = i.Mac
		}
	}
}

// published stores the ports that the runtime asked to publish. The keys may be in upper or
// lower case.
func (s *standing) published(capabilities map[string]any) {
	data, err := json.Marshal(capabilities["portMappings"])
	var all []portMapping
	if err != nil || json.Unmarshal(data, &all) != nil {
		return // not the format of portMappings
	}
	for _, p := range all {
		if p.HostPort != 0 { // a kubelet also lists container ports that are not published
			p.Protocol = strings.ToLower(cmp.Or(p.Protocol, "tcp"))
			s.Ports = append(s.Ports, p)
		}
	}
}

// at stores the namespace that a record names.
func (s *standing) at(path string, mark *life.Mark) {
	s.NetNS = cmp.Or(s.NetNS, path)
	if s.NetNS == path && mark != nil {
		s.mark = mark
	}
}

// findProcesses finds the first process in each namespace, in one pass over /proc.
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
