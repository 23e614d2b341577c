// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/cnm/docker/state"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/netns"
)

// waiting is the process that waits in a sandbox to become the container's
// (runc's init), 0 when there is none: then the container runs, or it is not
// runc's.
func (d *Driver) waiting(id netns.ID) int {
	for pid := range d.processesIn(id, "runc:[") {
		return pid
	}
	return 0
}

// processesIn are the processes in a namespace whose name begins so.
func (d *Driver) processesIn(id netns.ID, prefix string) iter.Seq[int] {
	return func(yield func(int) bool) {
		for _, pid := range d.processes() {
			dir := filepath.Join(d.opts.Paths.Proc, strconv.Itoa(pid))
			name, err := os.ReadFile(filepath.Join(dir, "comm"))
			if err != nil || !strings.HasPrefix(string(name), prefix) {
				continue
			}
			if at, ok, _ := live(filepath.Join(dir, "ns", "net")); ok && at == id && !yield(pid) {
				return
			}
		}
	}
}

// processes are the ids of all processes. The highest come first, as the one
// looked for is among the newest of a host that may have thousands.
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

// failClosed keeps a container from a network that is not what its chain says:
// the waiting process is killed, so that `docker run` fails; a container that
// runs already loses this interface's link.
func (d *Driver) failClosed(e *state.Endpoint) error {
	id, there, err := live(e.Sandbox)
	if !there {
		return err
	}
	if pid := d.waiting(id); pid > 0 {
		d.opts.Log("endpoint %.12s: end the start of its container (process %d)", e.ID, pid)
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("end the start of the container: %w", err)
		}
		return nil
	}
	c, err := d.inside(e.Sandbox)
	if err != nil {
		return err
	}
	defer c.Close()
	link, err := find(c, e)
	if err != nil {
		return err
	}
	d.opts.Log("endpoint %.12s: set its interface %s down", e.ID, link.Attrs().Name)
	return c.SetLink(link.Attrs().Index, nl.LinkChange{Down: true})
}

// identify finds out which container it is, as far as that goes without asking
// Docker: from a process in the sandbox, its cgroup, and Docker's file.
func (d *Driver) identify(e *state.Endpoint, id netns.ID) {
	if e.Container != "" {
		return
	}
	for _, prefix := range []string{"runc:[", ""} { // the first is cheap, and enough at a start
		for pid := range d.processesIn(id, prefix) {
			if d.identifyBy(e, pid); e.Container != "" {
				return
			}
		}
	}
}

func (d *Driver) identifyBy(e *state.Endpoint, pid int) {
	text, err := os.ReadFile(filepath.Join(d.opts.Paths.Proc, strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return
	}
	e.Container = containerID(string(text))
	if c, err := d.containerFile(e); err == nil {
		e.Name = strings.TrimPrefix(c.Name, "/")
	}
}

// containerFile is what Docker's file has of one.
type containerFile struct {
	ID, Name       string
	ResolvConfPath string // empty on the disk when a container starts for the first time
	Config         struct{ Labels map[string]string }
	MountPoints    map[string]json.RawMessage // by path in the container
}

// errNoContainer is when nothing tells whose sandbox it is.
var errNoContainer = errors.New("the container cannot be found, which takes runc and Docker's --data-root")

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

// idLen is the length of Docker's ids, hexadecimal.
const idLen = 64

// containerID finds a container's id in the text of /proc/PID/cgroup: the last
// run of 64 hexadecimal digits.
func containerID(text string) string {
	words := strings.FieldsFunc(text, func(c rune) bool { return (c < '0' || c > '9') && (c < 'a' || c > 'z') })
	for i := len(words) - 1; i >= 0; i-- {
		if len(words[i]) == idLen && strings.Trim(words[i], "0123456789abcdef") == "" {
			return words[i]
		}
	}
	return ""
}
