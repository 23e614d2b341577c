// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/cnm/docker/state"
)

// container is an endpoint of this host, as `patchbayd docker` and dockerd wrote
// it down. Neither is asked anything, or waits.
type container struct {
	Network string // the CNI network's name
	ID      string // Docker's id of the endpoint
	Addrs   []netip.Addr
	MAC     string
	Docker  string // the container's id
	Names   []string
}

// dockerCopy is a Docker network with the ranges of the configuration that it
// copied when it was made.
type dockerCopy struct {
	ID, Network string
	Ranges      []netip.Prefix
}

// docker reads what is below two directories, again only what has changed.
type docker struct {
	state, data string // /var/lib/patchbay, /var/lib/docker
	configs     map[string]dockerConfig
	files       string // of the driver, as they were read last
	networks    []*state.Network
	endpoints   []*state.Endpoint
}

// dockerConfig is what a container's config.v2.json says, at one time.
type dockerConfig struct {
	changed time.Time
	size    int64
	config  containerConfig
}

// containerConfig is the part of Docker's file that names come from. DNSNames is
// there since Docker 25, and has the others in it.
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

// read lists the endpoints that containers have, and the Docker networks.
func (d *docker) read() (all []container, copies []dockerCopy, err error) {
	errs := []error{d.readState()}
	names := map[string]string{}
	for _, n := range d.networks {
		c, err := copyOf(n)
		errs = append(errs, err)
		copies = append(copies, c)
		names[n.ID] = c.Network
	}
	configs, err := d.readConfigs()
	errs = append(errs, err)
	for _, e := range d.endpoints {
		if e.Phase == state.Joined && e.Kernel != nil && names[e.Network] != "" {
			all = append(all, containerOf(e, names[e.Network], configs))
		}
	}
	return all, copies, errors.Join(errs...)
}

// readState reads the driver's files when they are not as they were.
func (d *docker) readState() error {
	dir := filepath.Join(d.state, "docker")
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil // no driver was ever here
	}
	files, err := fingerprint(filepath.Join(dir, "networks"), filepath.Join(dir, "endpoints"))
	if err != nil || files == d.files {
		return err
	}
	st, err := state.Open(d.state, "docker")
	if err != nil {
		return err
	}
	networks, err := st.Networks()
	endpoints, err2 := st.Endpoints()
	d.networks, d.endpoints = networks, endpoints
	if err = errors.Join(err, err2); err == nil {
		d.files = files
	}
	return err
}

// fingerprint tells whether files below directories were replaced.
func fingerprint(dirs ...string) (string, error) {
	var out strings.Builder
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		for _, e := range entries {
			if fi, err := e.Info(); err == nil {
				fmt.Fprintf(&out, "%s %d %d\n", e.Name(), fi.Size(), fi.ModTime().UnixNano())
			}
		}
	}
	return out.String(), nil
}

// copyOf reads the configuration that a Docker network copied.
func copyOf(n *state.Network) (c dockerCopy, err error) {
	var list struct {
		Name    string
		Plugins []struct{ IPAM ipamConf }
	}
	if err := json.Unmarshal(n.Config, &list); err != nil {
		return c, fmt.Errorf("network %.12s of Docker: read configuration: %w", n.ID, err)
	}
	c = dockerCopy{ID: n.ID, Network: list.Name}
	for _, p := range list.Plugins {
		for _, set := range p.IPAM.Ranges {
			for _, r := range set {
				c.Ranges = append(c.Ranges, r.Subnet)
			}
		}
	}
	return c, nil
}

func containerOf(e *state.Endpoint, network string, configs []containerConfig) container {
	c := container{Network: network, ID: e.ID, MAC: e.Kernel.MAC, Docker: e.Container}
	for _, p := range e.Kernel.Addrs {
		c.Addrs = append(c.Addrs, p.Addr())
	}
	if e.Name != "" {
		c.Names = []string{e.Name}
	}
	for _, config := range configs {
		for _, at := range config.NetworkSettings.Networks {
			if at.EndpointID == e.ID || (e.Container != "" && config.ID == e.Container && at.NetworkID == e.Network) {
				c.Docker = config.ID
				c.Names = dockerNames(&config, slices.Concat(at.DNSNames, at.Aliases))
			}
		}
	}
	return c
}

// shortID is how many digits of an id Docker shows.
const shortID = 12

// dockerNames are the names that Docker's embedded DNS has for a container on
// one network: its name, aliases, short id and hostname.
func dockerNames(c *containerConfig, more []string) []string {
	all := append([]string{strings.TrimPrefix(c.Name, "/")}, more...)
	all = append(all, c.ID[:min(len(c.ID), shortID)], c.Config.Hostname)
	var out []string
	for _, name := range all {
		if name != "" && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// readConfigs reads the containers' files, those that changed.
func (d *docker) readConfigs() (out []containerConfig, err error) {
	paths, err := filepath.Glob(filepath.Join(d.data, "containers", "*", "config.v2.json"))
	if err != nil {
		return nil, fmt.Errorf("list containers of Docker: %w", err)
	}
	before := d.configs
	d.configs = map[string]dockerConfig{}
	var errs []error
	for _, path := range paths {
		c, err := readConfig(path, before[path])
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		errs = append(errs, err)
		d.configs[path] = c
		out = append(out, c.config)
	}
	return out, errors.Join(errs...)
}

// readConfig reads one file unless it is as it was. Docker replaces it whole.
func readConfig(path string, was dockerConfig) (dockerConfig, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return was, err
	}
	if fi.ModTime().Equal(was.changed) && fi.Size() == was.size {
		return was, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return was, err
	}
	var c containerConfig
	if err := json.Unmarshal(data, &c); err != nil {
		return was, fmt.Errorf("read %s: %w", path, err)
	}
	return dockerConfig{fi.ModTime(), fi.Size(), c}, nil
}
