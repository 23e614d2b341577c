// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cli/gc"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/order"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/netns"
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

// localAttachment is an attachment of this node.
type localAttachment struct {
	Network     string             `json:"network"`
	ContainerID string             `json:"containerID"`
	IfName      string             `json:"ifname"`
	Name        string             `json:"name,omitempty"` // that podman gave the container
	Pod         string             `json:"pod,omitempty"`  // of Kubernetes: "namespace/name"
	NetNS       string             `json:"netns,omitempty"`
	Alive       bool               `json:"alive"` // the attachment's namespace exists
	PID         int                `json:"pid,omitempty"`
	Process     string             `json:"process,omitempty"`
	Addresses   []string           `json:"addresses,omitempty"`
	MAC         string             `json:"mac,omitempty"`
	Ports       []spec.PortMapping `json:"ports,omitempty"`
	HostLinks   []string           `json:"hostLinks,omitempty"`
	Plugins     []string           `json:"plugins,omitempty"` // the plugins that keep a record of it
	Driver      string             `json:"driver,omitempty"`  // the Docker driver that attached it
	Since       time.Time          `json:"since,omitzero"`
	Cached      bool               `json:"cached"` // a runtime has cached the attachment's result

	Interfaces []spec.Interface `json:"interfaces,omitempty"` // from the result: the interfaces on the host and in the container
	Routes     []spec.Route     `json:"routes,omitempty"`

	config []byte // the configuration of the ADD

	policed *record.Policed // nil if its chain has no plugin policy

	state life.State
}

func (s *localAttachment) key() spec.AttachmentKey {
	return spec.AttachmentKey{ContainerID: s.ContainerID, IfName: s.IfName}
}

// Execute prints the attachments whose files it can read. It fails if only root could read one
// of the files, because a short or empty table would mean that nothing else is attached.
func (c *psCommand) Execute([]string) error {
	list, unseen := c.app.seen(c.Network)
	if c.Network != "" && len(list) == 0 {
		_, err := c.app.network(c.Network)
		c.app.warn(err)
	}
	c.app.findProcesses(list)
	heads := []string{"NETWORK", "CONTAINER", "IFNAME", "ADDRESSES", "PORTS", "NAMESPACE", "PROCESS"}
	pods := slices.ContainsFunc(list, func(s *localAttachment) bool { return s.Pod != "" })
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

// short returns the name of the container, or the beginning of its id.
func (s *localAttachment) short() string {
	return cmp.Or(s.Name, s.ContainerID[:min(len(s.ContainerID), shortID)])
}

// row returns the cells for one attachment. With one published port and one address of each
// family, a row has at most 100 columns. For a namespace below /run/netns, row shows the name,
// which our commands accept.
func (c *psCommand) row(s *localAttachment) []string {
	id, where := s.ContainerID, s.NetNS
	if !c.NoTrunc {
		id, where = s.short(), shortened(c.app.named(where), 20)
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

// named is the name of a namespace below /run/netns, or the path of another.
func (a *app) named(netns string) string { return strings.TrimPrefix(netns, a.paths.NetNS+"/") }

// shortened cuts characters from the middle of a word. A path's beginning and end say most.
func shortened(word string, most int) string {
	if len(word) <= most {
		return word
	}
	return word[:most/2-1] + ".." + word[len(word)-most/2+1:]
}

// seen returns the attachments of a network. If a file cannot be read, seen prints a warning.
// If only root could read it, seen returns an error.
func (a *app) seen(network string) (list []*localAttachment, unseen error) {
	list, err := a.attachments(network)
	if unseen = rootless(a.command(), err); unseen == err { //nolint:errorlint // the same error, not a wrapped one
		a.warn(err)
		return list, nil
	}
	return list, unseen
}

// attachments returns the attachments of a network, or of all networks if network is "". It reads files and, if a namespace
// is not at its path, looks for processes that have it.
func (a *app) attachments(network string) ([]*localAttachment, error) {
	f := gc.ReadFiles(a.runtime(nil), record.New(a.paths.Run), record.OfDrivers(a.paths.State))
	list, judge := []*localAttachment{}, life.Judge{Proc: a.paths.Proc, Run: a.paths.Run}
	for _, at := range f.Attached {
		if s := localAttachmentOf(at); s != nil && (network == "" || s.Network == network) {
			s.state = at.Namespace(&judge)
			s.Alive = s.state == life.Alive || s.state == life.Unsure && s.NetNS != ""
			list = append(list, s)
		}
	}
	order.By(list, func(x, y *localAttachment) int {
		return cmp.Or(cmp.Compare(x.Network, y.Network), cmp.Compare(x.ContainerID, y.ContainerID), cmp.Compare(x.IfName, y.IfName))
	})
	return list, f.Errors()
}

// localAttachmentOf describes an attachment of this node. It returns nil for one that has been detached and only
// waits for its driver: gc reports that.
func localAttachmentOf(at *gc.Attached) *localAttachment {
	s := &localAttachment{Network: at.Network, ContainerID: at.ContainerID, IfName: at.IfName, NetNS: at.NetNS, Pod: at.Pod()}
	if s.Name = byPodman(at.Cached); s.Name != "" {
		s.Pod = ""
	}
	if at.InCache {
		s.Since, s.Cached, s.config = at.Since, true, at.Config
		s.result(at.Result)
		if declaresPorts(at.Config) {
			s.published(at.Capabilities)
		}
	}
	for _, r := range at.Records {
		s.HostLinks = append(s.HostLinks, r.Links...)
		s.Plugins = append(s.Plugins, r.Plugin)
		if r.Policed != nil {
			s.policed = r.Policed
		}
	}
	if !slices.ContainsFunc(at.Drivers, func(r gc.DriverRecord) bool { return r.Asked.Ended }) {
		for _, r := range at.Drivers {
			s.byDriver(r.Plugin, r.Asked)
		}
	} else if !at.InCache && len(at.Records) == 0 {
		return nil
	}
	slices.Sort(s.Plugins)
	return s
}

// byPodman returns the name that podman gave the container of a cached result. podman passes it as the name of a
// pod, without a namespace or with the same name as namespace. Only a Kubernetes runtime passes the pod's uid.
func byPodman(c chain.Cached) string {
	args := make(map[string]string)
	for _, a := range c.Args {
		args[a[0]] = a[1]
	}
	name, namespace := args["K8S_POD_NAME"], args["K8S_POD_NAMESPACE"]
	if args["K8S_POD_UID"] != "" || namespace != "" && namespace != name {
		return ""
	}
	return name
}

func (s *localAttachment) byDriver(plugin string, d *record.Driver) {
	s.Plugins = append(s.Plugins, plugin)
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
func (s *localAttachment) result(r *spec.Result) {
	if r == nil {
		return
	}
	s.Interfaces, s.Routes = r.Interfaces, r.Routes
	for _, ip := range r.IPs {
		s.Addresses = append(s.Addresses, ip.Address.String())
	}
	if in := r.Inside(s.IfName); in != nil {
		s.MAC = in.Mac
	}
}

// declaresPorts reports whether a plugin of the cached configuration declares the capability
// portMappings. containerd passes the ports of a pod to each of its networks, also to loopback.
// An old runtime cached no configuration; then the network may publish ports.
func declaresPorts(config []byte) bool {
	list, err := chain.ParseCached(config)
	return err != nil || slices.ContainsFunc(list.Plugins, func(p chain.Plugin) bool { return p.Capabilities["portMappings"] })
}

// published stores the ports that the runtime asked to publish. The keys may be in upper or
// lower case.
func (s *localAttachment) published(capabilities map[string]any) {
	data, err := json.Marshal(capabilities["portMappings"])
	var all []spec.PortMapping
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

// findProcesses finds the first process in each namespace. It reads /proc only once.
func (a *app) findProcesses(list []*localAttachment) {
	byNS := map[netns.ID][]*localAttachment{}
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
