// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cli/netavark"
	"github.com/patchbay-net/patchbay/cli/netfile"
)

// networkInfo is a network as validate and ls print it.
type networkInfo struct {
	Name        string   `json:"name"`
	CNIVersion  string   `json:"cniVersion"`
	Driver      string   `json:"driver,omitempty"`
	Subnets     []string `json:"subnets,omitempty"`
	Plugins     []string `json:"plugins"`
	Attachments *int     `json:"attachments,omitempty"`
	File        string   `json:"file,omitempty"` // empty if the network is built in
}

func (n *network) info() networkInfo {
	about := netfile.Describe(n.List)
	i := networkInfo{Name: n.Name, CNIVersion: n.CNIVersion, Driver: about.Driver, Plugins: about.Plugins, File: n.File}
	for _, s := range about.Subnets {
		i.Subnets = append(i.Subnets, s.Prefix.String())
	}
	return i
}

// brokenInfo describes a file that cannot be used.
type brokenInfo struct {
	File  string `json:"file"`
	Error string `json:"error"`
}

type networkListCommand struct {
	app  *app
	JSON bool `long:"json" description:"print a JSON array; a broken file is an object with file and error"`
}

// Execute lists the networks. If files are broken, it prints the other networks and then fails.
func (c *networkListCommand) Execute([]string) error {
	dir, err := chain.LoadDir(confDir(c.app.getenv))
	if err != nil {
		return fmt.Errorf("list networks: %w", err)
	}
	list, broken := networks(c.app.getenv, c.app.paths)
	attached, err := c.app.attached()
	c.app.warn(err)
	infos := []any{}
	t := newTable("NAME", "DRIVER", "SUBNETS", "ATTACHED", "FILE")
	for _, n := range list {
		i := n.info()
		count := attached[n.Name]
		i.Attachments = &count
		infos = append(infos, i)
		file := i.File
		if n.builtin {
			file = "(built in)"
		}
		t.row(i.Name, i.Driver, cmp.Or(strings.Join(i.Subnets, ","), "-"), strconv.Itoa(count), file)
	}
	for _, b := range dir.Broken {
		infos = append(infos, brokenInfo{b.File, b.Err.Error()})
	}
	return errors.Join(c.app.show(infos, t.String()), broken)
}

// attached counts the attachments of each network.
func (a *app) attached() (map[string]int, error) {
	list, err := a.attachments("")
	count := map[string]int{}
	for _, s := range list {
		count[s.Network]++
	}
	return count, err
}

type networkInspectCommand struct {
	app  *app
	JSON bool `long:"json" description:"the same: the output is always JSON"`
	Args struct {
		Networks []networkName `positional-arg-name:"NETWORK" required:"1"`
	} `positional-args:"yes"`
}

// inspectedNetwork is a network as inspect prints it, with the keys that podman prints for the same
// values.
type inspectedNetwork struct {
	Name       string            `json:"name"`
	Driver     string            `json:"driver"`
	Interface  string            `json:"network_interface,omitempty"`
	Created    time.Time         `json:"created,omitzero"`
	Subnets    []netavark.Subnet `json:"subnets,omitempty"`
	IPv6       bool              `json:"ipv6_enabled"`
	Internal   bool              `json:"internal"`
	DNS        []string          `json:"network_dns_servers,omitempty"`
	Options    map[string]string `json:"options,omitempty"`
	IPAM       map[string]string `json:"ipam_options"`
	CNIVersion string            `json:"cniVersion"`
	Plugins    []string          `json:"plugins"`
	File       string            `json:"file,omitempty"`

	Attachments []*localAttachment `json:"attachments"`
}

// Execute prints the networks that exist. If one does not exist, Execute fails.
func (c *networkInspectCommand) Execute([]string) error {
	out := []*inspectedNetwork{}
	var errs []error
	for _, name := range c.Args.Networks {
		n, err := c.app.network(string(name))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		i := n.inspect()
		i.Attachments, err = c.app.attachments(n.Name)
		c.app.warn(err)
		c.app.findProcesses(i.Attachments)
		out = append(out, i)
	}
	return errors.Join(append([]error{c.app.printJSON(out)}, errs...)...)
}

func (n *network) inspect() *inspectedNetwork {
	about := netfile.Describe(n.List)
	i := &inspectedNetwork{
		Name: n.Name, Driver: about.Driver, Interface: about.Interface, Internal: about.Internal, DNS: about.DNS, Options: about.Options(),
		IPAM: map[string]string{"driver": cmp.Or(about.IPAM, "none")}, CNIVersion: n.CNIVersion, Plugins: about.Plugins,
	}
	if n.File != "" {
		i.File, _ = filepath.Abs(n.File) // cannot fail: the file was read under this path
		if fi, err := os.Stat(n.File); err == nil {
			i.Created = fi.ModTime()
		}
	}
	i.Subnets = netavark.Subnets(about)
	i.IPv6 = slices.ContainsFunc(i.Subnets, netavark.Subnet.Is6)
	return i
}
