// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/docker/state"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/netns"
)

// waiting are the processes that wait in a sandbox to become the container's (runc's
// init). It is empty if there is any other process: then the container runs, and a runc
// init belongs to a `docker exec` or to a container with `--network container:X`.
func (d *Driver) waiting(id netns.ID) (pids []int) {
	for pid := range d.processesIn(id, "") {
		if !strings.HasPrefix(d.comm(pid), runcInit) {
			return nil
		}
		pids = append(pids, pid)
	}
	return pids
}

// populated says whether a sandbox has processes other than waiting ones.
func (d *Driver) populated(id netns.ID) bool {
	for pid := range d.processesIn(id, "") {
		if name := d.comm(pid); name != "" && !strings.HasPrefix(name, runcInit) {
			return true
		}
	}
	return false
}

// runcInit is the beginning of the name of runc's init.
const runcInit = "runc:["

// comm is a process's name, empty for one that has ended.
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

// processesIn are the processes in a namespace whose names have a prefix.
func (d *Driver) processesIn(id netns.ID, prefix string) iter.Seq[int] {
	return func(yield func(int) bool) {
		for _, pid := range d.processes() {
			if !strings.HasPrefix(d.comm(pid), prefix) {
				continue
			}
			if at, ok, _ := live(filepath.Join(d.proc(pid), "ns", "net")); ok && at == id && !yield(pid) {
				return
			}
		}
	}
}

// processes are the ids of all processes, the highest first: the process in question is
// among the newest, of thousands perhaps.
func (d *Driver) processes() (pids []int) {
	dir, err := os.Open(d.opts.Paths.Proc)
	if err != nil {
		return nil
	}
	defer dir.Close()                  //nolint:errcheck // read only
	names, err := dir.Readdirnames(-1) // not Glob, which lists each process's directory
	if err != nil {
		return nil
	}
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	slices.Reverse(pids)
	return pids
}

// failClosed keeps a container from a network that is not as its chain configures it. It
// kills the waiting process, so that `docker run` fails; a running container loses this
// interface's link.
func (d *Driver) failClosed(e *state.Endpoint) error {
	id, there, err := live(e.Sandbox)
	if !there {
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
	if !e.Closed && isUp(link) { // the link loses its IPv6 addresses and routes, so record them first
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

// shut says whether failClosed has set an endpoint's link down, or was killed just
// before.
func shut(e *state.Endpoint) bool { return e.Closed || e.Before != nil }

// reopen sets up a link that failClosed has set down, once the network is as its chain
// configures it, and restores the addresses and routes that were lost.
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
	if e.Before != nil { // an earlier driver set it down without a record
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
	all := slices.SortedFunc(slices.Values(s.Routes), func(a, b state.Route) int { return a.GW.Compare(b.GW) }) // routes to gateways first
	for i := range all {
		if all[i].Kernel {
			continue // made by its address
		}
		err := c.RouteAdd(toKernel(&all[i], link.Attrs().Index))
		if err != nil && !errors.Is(err, unix.EEXIST) { // another network may have the default route by now
			return fmt.Errorf("put back the route to %s: %w", all[i].Dst, err)
		}
	}
	return nil
}

// end kills the waiting processes.
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
