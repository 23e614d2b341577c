// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/patchbay-net/patchbay/daemons/docker/state"
)

// container is one endpoint of a container on this host, as the Docker driver and dockerd store
// it. The agent only reads their files, and never calls these programs.
type container struct {
	Network string // the CNI network's name
	ID      string // Docker's id of the endpoint
	Addrs   []netip.Addr
	MAC     string
	Docker  string // the container's id
	Names   []string
}

// dockerCopy describes a Docker network. It has the address ranges of the configuration that
// the network copied when it was created.
type dockerCopy struct {
	ID, Network string
	Ranges      []netip.Prefix
	Ours        bool // copied from a configuration that an agent wrote
}

// docker reads the files of the driver and of dockerd. It reads a file again only if the file has
// changed.
type docker struct {
	state, data string // /var/lib/patchbay, /var/lib/docker
	configs     map[string]dockerConfig
	files       string // fingerprint of the driver's files when they were last read
	networks    []*state.Network
	endpoints   []*state.Endpoint

	// The following fields are the result of the last read. It is valid until a file changes.
	whole  bool // the last read had no error
	all    []container
	copies []dockerCopy
}

// dockerConfig is the content of a container's config.v2.json.
type dockerConfig struct {
	file   string // version of the file
	config *containerConfig
}

// containerConfig is the part of that file that holds names. DNSNames exists since Docker 25,
// and includes the other names.
type containerConfig struct {
	ID     string
	Name   string
	Config struct{ Hostname string }

	NetworkSettings struct {
		Networks map[string]struct {
			NetworkID, EndpointID string
			Aliases, DNSNames     []string
		}
	}
}

// read lists the endpoints of containers and the Docker networks. If no file has changed, it
// returns the same slices as before.
func (d *docker) read() (all []container, copies []dockerCopy, err error) {
	news, err := d.readState()
	configs, more, err2 := d.readConfigs()
	errs := []error{err, err2}
	if d.whole && !news && !more && errors.Join(errs...) == nil {
		return d.all, d.copies, nil
	}
	names := map[string]string{}
	for _, n := range d.networks {
		c, err := copyOf(n)
		errs = append(errs, err)
		copies = append(copies, c)
		names[n.ID] = c.Network
	}
	places := placesOf(configs)
	for _, e := range d.endpoints {
		if e.Phase == state.Joined && e.Kernel != nil && names[e.Network] != "" {
			all = append(all, containerOf(e, names[e.Network], places))
		}
	}
	err = errors.Join(errs...)
	d.whole, d.all, d.copies = err == nil, all, copies
	return all, copies, err
}

// readState reads the driver's files if they have changed.
func (d *docker) readState() (news bool, err error) {
	dir := filepath.Join(d.state, "docker")
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return false, nil // the driver has never run on this host
	}
	files, err := fingerprint(filepath.Join(dir, "networks"), filepath.Join(dir, "endpoints"))
	if err != nil || files == d.files {
		return false, err
	}
	st, err := state.Open(d.state, "docker")
	if err != nil {
		return false, err
	}
	networks, err := st.Networks.List()
	endpoints, err2 := st.Endpoints.List()
	d.networks = withUnread(filepath.Join(dir, "networks"), networks, d.networks, func(n *state.Network) string { return n.ID })
	d.endpoints = withUnread(filepath.Join(dir, "endpoints"), endpoints, d.endpoints, func(e *state.Endpoint) string { return e.ID })
	if err = errors.Join(err, err2); err == nil {
		d.files = files
	}
	return true, err
}

// withUnread adds the known values of files that exist but cannot be read now.
func withUnread[T any](dir string, now, before []*T, id func(*T) string) []*T {
	for _, was := range before {
		if slices.ContainsFunc(now, func(is *T) bool { return id(is) == id(was) }) {
			continue
		}
		if _, err := os.Lstat(filepath.Join(dir, id(was))); !errors.Is(err, fs.ErrNotExist) {
			now = append(now, was)
		}
	}
	return now
}

// fingerprint returns a text that changes when a file below the directories is replaced.
func fingerprint(dirs ...string) (string, error) {
	var out strings.Builder
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		for _, e := range entries {
			if fi, err := e.Info(); err == nil {
				fmt.Fprintf(&out, "%s %s\n", e.Name(), version(fi))
			}
		}
	}
	return out.String(), nil
}

// version returns a text that changes when a file is replaced. Two versions of a file may have the same
// size and, within one tick of the kernel's clock, the same time. They never have the same inode.
func version(fi fs.FileInfo) string {
	inode := uint64(0)
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		inode = st.Ino
	}
	return fmt.Sprintf("%d %d %d", inode, fi.Size(), fi.ModTime().UnixNano())
}

// copyOf reads the configuration that a Docker network copied when it was created.
func copyOf(n *state.Network) (c dockerCopy, err error) {
	type pluginConf struct {
		Bridge  string
		IPAM    ipamConf
		Plugins []pluginConf // of type patchbay: the plugins that it runs
	}
	var list struct {
		Name    string
		Plugins []pluginConf
	}
	if err := json.Unmarshal(n.Config, &list); err != nil {
		return c, fmt.Errorf("network %.12s of Docker: read configuration: %w", n.ID, err)
	}
	c = dockerCopy{ID: n.ID, Network: list.Name}
	for _, p := range list.Plugins {
		list.Plugins = append(list.Plugins, p.Plugins...)
	}
	for _, p := range list.Plugins {
		c.Ours = c.Ours || p.Bridge == bridgeName(list.Name) // the copy lacks our mark
		for _, set := range p.IPAM.Ranges {
			for _, r := range set {
				c.Ranges = append(c.Ranges, r.Subnet)
			}
		}
	}
	return c, nil
}

// place is one network that a container is on.
type place struct {
	container *containerConfig
	names     []string // its names on that network, in addition to the container's own
}

// places finds a place by Docker's id of the endpoint, or else by the ids of container and
// network. For a moment, the file of a running container lacks the endpoint's id.
type places struct {
	endpoints map[string]place
	networks  map[[2]string]place
}

func placesOf(configs []*containerConfig) places {
	out := places{map[string]place{}, map[[2]string]place{}}
	for _, c := range configs {
		for _, at := range c.NetworkSettings.Networks {
			p := place{c, slices.Concat(at.DNSNames, at.Aliases)}
			out.endpoints[at.EndpointID] = p
			out.networks[[2]string{c.ID, at.NetworkID}] = p
		}
	}
	return out
}

func (p *places) of(e *state.Endpoint) (place, bool) {
	at, ok := p.endpoints[e.ID]
	if !ok {
		at, ok = p.networks[[2]string{e.Container, e.Network}]
	}
	return at, ok
}

func containerOf(e *state.Endpoint, network string, in places) container {
	c := container{Network: network, ID: e.ID, MAC: e.Kernel.MAC, Docker: e.Container}
	for _, p := range e.Kernel.Addrs {
		c.Addrs = append(c.Addrs, p.Addr())
	}
	if e.Name != "" {
		c.Names = []string{e.Name}
	}
	if at, ok := in.of(e); ok {
		c.Docker = at.container.ID
		c.Names = dockerNames(at.container, at.names)
	}
	return c
}

// shortID is the number of digits of an id that Docker shows.
const shortID = 12

// dockerNames returns the names that Docker's embedded DNS answers for a container on one
// network: its name, aliases, short id and hostname.
func dockerNames(c *containerConfig, more []string) []string {
	all := append([]string{strings.TrimPrefix(c.Name, "/")}, more...)
	all = append(all, c.ID[:min(len(c.ID), shortID)], c.Config.Hostname)
	var out []string
	for _, name := range all {
		if name != "" && len(out) < maxNames && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// maxNames limits the names of one container. The store limits the size of an object, and each host has
// an index of all names.
const maxNames = 256

// readConfigs reads those files of containers that have changed. news reports whether a file
// has changed, appeared or disappeared.
func (d *docker) readConfigs() (out []*containerConfig, news bool, err error) {
	dir := filepath.Join(d.data, "containers")
	entries, err := os.ReadDir(dir)
	before := d.configs
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		for _, path := range slices.Sorted(maps.Keys(before)) {
			out = append(out, before[path].config)
		}
		return out, false, fmt.Errorf("list containers of Docker: %w", err)
	}
	d.configs = make(map[string]dockerConfig, len(entries))
	var errs []error
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		path := filepath.Join(dir, e.Name(), "config.v2.json")
		was := before[path]
		c, err := readConfig(path, was)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		errs = append(errs, err)
		d.configs[path] = c
		out = append(out, c.config)
		news = news || c.config != was.config
	}
	return out, news || len(d.configs) != len(before), errors.Join(errs...)
}

// readConfig reads one file if it has changed. Docker always replaces the whole file.
func readConfig(path string, was dockerConfig) (dockerConfig, error) {
	if was.config == nil {
		was.config = &containerConfig{}
	}
	fi, err := os.Stat(path)
	if err != nil {
		return was, err
	}
	if version(fi) == was.file {
		return was, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return was, err
	}
	c := new(containerConfig)
	if err := json.Unmarshal(data, c); err != nil {
		return was, fmt.Errorf("read %s: %w", path, err)
	}
	return dockerConfig{version(fi), c}, nil
}
