// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/docker/state"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/netns"
)

// waiting returns the processes of runc's init, which wait in a sandbox to become the container's
// process. If the sandbox has any other process, the container is already running, and waiting
// returns none: runc's init then belongs to `docker exec`, or to a container with `--network
// container:X`.
func (d *Driver) waiting(id netns.ID) (pids []int) {
	for pid := range d.processesIn(id, "") {
		if !strings.HasPrefix(d.comm(pid), runcInit) {
			return nil
		}
		pids = append(pids, pid)
	}
	return pids
}

// populated reports whether a sandbox has a process other than runc's init.
func (d *Driver) populated(id netns.ID) bool {
	for pid := range d.processesIn(id, "") {
		if name := d.comm(pid); name != "" && !strings.HasPrefix(name, runcInit) {
			return true
		}
	}
	return false
}

// runcInit is how the name of runc's init begins.
const runcInit = "runc:["

// comm returns the name of a process, or "" if the process has ended.
func (d *Driver) comm(pid int) string {
	name, err := os.ReadFile(filepath.Join(d.proc(pid), "comm"))
	if err != nil {
		return ""
	}
	return string(name)
}

func (d *Driver) proc(pid int) string {
	return filepath.Join(d.opts.Paths.Proc, strconv.Itoa(pid))
}

// processesIn returns those processes of a network namespace that have a name with the prefix.
// The highest process id comes first: there may be thousands of processes, and the wanted one is
// among the newest.
func (d *Driver) processesIn(id netns.ID, prefix string) iter.Seq[int] {
	return func(yield func(int) bool) {
		dir, err := os.Open(d.opts.Paths.Proc)
		if err != nil {
			return
		}
		names, _ := dir.Readdirnames(-1) // faster than Glob, which lists the directory of each process
		dir.Close()                      //nolint:errcheck // read only
		var pids []int
		for _, name := range names {
			if pid, err := strconv.Atoi(name); err == nil {
				pids = append(pids, pid)
			}
		}
		slices.SortFunc(pids, func(a, b int) int { return b - a })
		for _, pid := range pids {
			if !strings.HasPrefix(d.comm(pid), prefix) {
				continue
			}
			if at, ok, _ := live(filepath.Join(d.proc(pid), "ns", "net")); ok && at == id && !yield(pid) {
				return
			}
		}
	}
}

// failClosed disconnects a container whose network is not as the chain configures it. If runc's
// init is still waiting, failClosed kills it, so that `docker run` fails. In a running
// container it sets this endpoint's link down.
func (d *Driver) failClosed(e *state.Endpoint) error {
	id, exists, err := live(e.Sandbox)
	if !exists {
		return err
	}
	if pids := d.waiting(id); len(pids) > 0 {
		return d.end(e, pids)
	}
	c, link, err := d.sandboxLink(e)
	if err != nil {
		return err
	}
	defer c.Close()
	if !e.Closed && isUp(link) { // when a link goes down, the kernel drops its IPv6 addresses and routes, so record them first
		if e.Before, err = snapshot(c, link); err != nil {
			return err
		}
		if err := d.save(e); err != nil {
			return err
		}
	}
	d.opts.Log("endpoint %.12s: set its interface %s down", e.ID, link.Attrs().Name)
	if err := c.SetLink(link.Attrs().Index, nl.LinkChange{Down: true}); err != nil {
		return err
	}
	e.Closed = true
	return d.save(e)
}

// shut reports whether failClosed has set an endpoint's link down, or was killed just before it
// did so.
func shut(e *state.Endpoint) bool { return e.Closed || e.Before != nil }

// reopen sets up the link that failClosed has set down. Call it when the container's network is
// as the chain configures it. reopen restores the addresses and routes that were lost.
func (d *Driver) reopen(n *network, e *state.Endpoint) error {
	if !shut(e) {
		return nil
	}
	c, link, err := d.sandboxLink(e)
	if err != nil {
		return err
	}
	defer c.Close()
	d.opts.Log("endpoint %.12s: set its interface %s up again", e.ID, link.Attrs().Name)
	if err := c.LinkSetUp(link); err != nil {
		return err
	}
	if e.Before != nil { // an earlier driver set the link down without a record
		if err := putBack(c, link, e.Before); err != nil {
			return err
		}
	}
	if err := exact(c, link.Attrs().Index, e.Kernel, n.Internal); err != nil {
		return err
	}
	e.Closed, e.Before = false, nil
	return d.save(e)
}

// putBack restores the addresses and routes of a link that was set down.
func putBack(c *nl.Conn, link netlink.Link, s *state.Snapshot) error {
	for _, a := range s.Addrs {
		if err := addAddr(c, link, a); err != nil {
			return err
		}
	}
	all := slices.SortedFunc(slices.Values(s.Routes), func(a, b state.Route) int { return a.GW.Compare(b.GW) }) // the routes to gateways come first
	for i := range all {
		if all[i].Kernel {
			continue // the kernel makes this route with the address
		}
		err := c.RouteAdd(toKernel(&all[i], link.Attrs().Index))
		if err != nil && !errors.Is(err, unix.EEXIST) { // another network may have the default route now
			return fmt.Errorf("put back the route to %s: %w", all[i].Dst, err)
		}
	}
	return nil
}

// end kills the processes of runc's init.
func (d *Driver) end(e *state.Endpoint, pids []int) error {
	var errs []error
	for _, pid := range pids {
		d.opts.Log("endpoint %.12s: kill its starting container (process %d)", e.ID, pid)
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("kill the starting container: %w", err))
		}
	}
	return errors.Join(errs...)
}

// identify finds the endpoint's container without asking Docker. It looks at a process in the
// sandbox, that process's cgroup, and Docker's files.
func (d *Driver) identify(e *state.Endpoint, id netns.ID) {
	if e.Container != "" {
		return
	}
	for _, prefix := range []string{runcInit, ""} { // the first search takes little time, and is enough while the container starts
		for pid := range d.processesIn(id, prefix) {
			if d.identifyBy(e, pid) {
				return
			}
		}
	}
}

// identifyBy reports whether a process belongs to the container that owns the sandbox. If it does,
// identifyBy records that container. Other processes may be in the sandbox too. A process of a
// container with `--network container:X` belongs to that other container. A process of a container
// inside this container has a cgroup below this container's cgroup.
func (d *Driver) identifyBy(e *state.Endpoint, pid int) bool {
	text, err := os.ReadFile(filepath.Join(d.proc(pid), "cgroup"))
	if err != nil {
		return false
	}
	for _, id := range containerIDs(string(text)) {
		if !d.ownsSandbox(id) {
			continue
		}
		e.Container = id
		if c, err := d.containerFile(e); err == nil {
			e.Name = strings.TrimPrefix(c.Name, "/")
		}
		return true
	}
	return false
}

// ownsSandbox reports whether a container is one of Docker's and has its own sandbox. It reads the
// file that Docker writes when it creates the container.
func (d *Driver) ownsSandbox(id string) bool {
	var host struct{ NetworkMode string }
	data, err := os.ReadFile(filepath.Join(d.opts.DataRoot, "containers", id, "hostconfig.json"))
	return err == nil && json.Unmarshal(data, &host) == nil && !strings.HasPrefix(host.NetworkMode, "container:")
}

// containerFile has the parts that the driver needs of Docker's file for a container.
type containerFile struct {
	ID, Name       string
	ResolvConfPath string // empty in the file until the container's first start
	Config         struct{ Labels map[string]string }
	MountPoints    map[string]json.RawMessage // by path in the container
}

// errNoContainer means that the driver does not know which container owns the sandbox.
var errNoContainer = errors.New("the container cannot be found: this requires runc and Docker's --data-root")

func (d *Driver) containerFile(e *state.Endpoint) (*containerFile, error) {
	if e.Container == "" {
		return nil, errNoContainer
	}
	data, err := os.ReadFile(filepath.Join(d.opts.DataRoot, "containers", e.Container, "config.v2.json"))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoContainer, err)
	}
	c := new(containerFile)
	if err := json.Unmarshal(data, c); err != nil {
		return nil, fmt.Errorf("read the container %.12s: %w", e.Container, err)
	}
	return c, nil
}

// idLen is the length of Docker's ids in hexadecimal digits.
const idLen = 64

// isID reports whether a text has the form of Docker's ids.
func isID(text string) bool {
	return len(text) == idLen && strings.Trim(text, "0123456789abcdef") == ""
}

// containerIDs finds the ids of containers in the text of /proc/PID/cgroup. The id of the
// outermost container comes first: below its own cgroup, a container may be able to make another one
// with any name.
func containerIDs(text string) (ids []string) {
	for word := range strings.FieldsFuncSeq(text, func(c rune) bool { return (c < '0' || c > '9') && (c < 'a' || c > 'z') }) {
		if isID(word) {
			ids = append(ids, word)
		}
	}
	return ids
}

// The keys in CNI_ARGS that describe the container.
const (
	argID     = "DOCKER_CONTAINER_ID"
	argName   = "DOCKER_CONTAINER_NAME"
	argLabels = "DOCKER_LABEL_"
	argPrefix = "DOCKER_" // of all of them
)

// containerArgs returns the part of CNI_ARGS that describes the container, if it is known.
func containerArgs(e *state.Endpoint) (args [][2]string) {
	if e.Container != "" {
		args = append(args, [2]string{argID, e.Container})
	}
	if e.Name != "" {
		args = append(args, [2]string{argName, e.Name})
	}
	for _, k := range slices.Sorted(maps.Keys(e.Labels)) {
		args = append(args, [2]string{k, e.Labels[k]})
	}
	return args
}

// label reads the labels of the container that the network's option cni.labels selects. If a label
// cannot be read, or cannot be written in CNI_ARGS, label returns an error: a plugin that decides
// by labels must not be called without them.
func (d *Driver) label(n *network, e *state.Endpoint) error {
	if n.labels == "" {
		return nil
	}
	c, err := d.containerFile(e)
	if err != nil {
		return fmt.Errorf("%s: %w", optLabels, err)
	}
	e.Labels, err = labels(c.Config.Labels, n.labels)
	return err
}

// labels returns the labels whose names have a prefix, as keys and values for CNI_ARGS.
// CNI_ARGS has the form K=V;K=V with alphanumeric keys, and cannot escape characters.
func labels(all map[string]string, prefix string) (map[string]string, error) {
	out := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		value := all[name]
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		if strings.ContainsFunc(value, func(c rune) bool { return c == ';' || c == '=' || c < ' ' || c == 0x7f }) {
			return nil, fmt.Errorf("%s: label %s=%q cannot be expressed in CNI_ARGS: a value must not contain ';' or '='", optLabels, name, value)
		}
		arg := argLabels + strings.Map(alphanumeric, name)
		if _, twice := out[arg]; twice {
			return nil, fmt.Errorf("%s: two labels are %s", optLabels, arg)
		}
		out[arg] = value
	}
	return out, nil
}

func alphanumeric(c rune) rune {
	if c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' {
		return c
	}
	return '_'
}
