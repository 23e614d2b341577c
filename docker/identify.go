// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/patchbay-net/patchbay/docker/state"
	"github.com/patchbay-net/patchbay/netns"
)

// identify finds the endpoint's container without asking Docker: from a process in the
// sandbox, its cgroup, and Docker's files.
func (d *Driver) identify(e *state.Endpoint, id netns.ID) {
	if e.Container != "" {
		return
	}
	for _, prefix := range []string{runcInit, ""} { // the first search is cheap, and enough at a start
		for pid := range d.processesIn(id, prefix) {
			if d.identifyBy(e, pid) {
				return
			}
		}
	}
}

// identifyBy is true for a process of the container that owns the sandbox. The sandbox
// may have other processes: of containers with `--network container:X`, and of containers
// inside the container, whose cgroups are below its own.
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

// ownsSandbox says whether a container is Docker's and has not joined another's network.
// Docker writes the file when it creates the container.
func (d *Driver) ownsSandbox(id string) bool {
	var host struct{ NetworkMode string }
	data, err := os.ReadFile(filepath.Join(d.opts.DataRoot, "containers", id, "hostconfig.json"))
	return err == nil && json.Unmarshal(data, &host) == nil && !strings.HasPrefix(host.NetworkMode, "container:")
}

// containerFile is a part of Docker's file of a container.
type containerFile struct {
	ID, Name       string
	ResolvConfPath string // empty on the disk at a container's first start
	Config         struct{ Labels map[string]string }
	MountPoints    map[string]json.RawMessage // by path in the container
}

// errNoContainer means that the sandbox's container is unknown.
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

// idLen is the length of Docker's ids, hexadecimal.
const idLen = 64

// isID says whether a text is an id of Docker's.
func isID(text string) bool {
	return len(text) == idLen && strings.Trim(text, "0123456789abcdef") == ""
}

// containerIDs finds ids of containers in the text of /proc/PID/cgroup, the outermost
// last.
func containerIDs(text string) (ids []string) {
	words := strings.FieldsFunc(text, func(c rune) bool { return (c < '0' || c > '9') && (c < 'a' || c > 'z') })
	for i := len(words) - 1; i >= 0; i-- {
		if isID(words[i]) {
			ids = append(ids, words[i])
		}
	}
	return ids
}
