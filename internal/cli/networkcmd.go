// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/patchbay-net/patchbay/spec"
)

const networkLong = `Networks are the .conflist, .conf and .json files in $NETCONFPATH
(/etc/cni/net.d). With none there, a built-in network serves; "network show
patchbay" prints it, to be kept as a file and changed.`

// networkCommand holds the subcommands.
type networkCommand struct {
	List     networkListCommand     `command:"ls" description:"list the networks, the preferred one first"`
	Show     networkShowCommand     `command:"show" description:"print the configuration of a network"`
	Validate networkValidateCommand `command:"validate" description:"check a network and that its plugins speak its version"`
}

func newNetworkCommand(a *app) *networkCommand {
	return &networkCommand{
		List:     networkListCommand{app: a},
		Show:     networkShowCommand{app: a},
		Validate: networkValidateCommand{app: a},
	}
}

type networkListCommand struct {
	app  *app
	JSON bool `long:"json" description:"print a JSON array"`
}

// networkInfo is one line of ls.
type networkInfo struct {
	Name       string   `json:"name"`
	CNIVersion string   `json:"cniVersion"`
	Plugins    []string `json:"plugins"`
	File       string   `json:"file,omitempty"` // empty for the built-in network
}

func (n *network) info() networkInfo {
	i := networkInfo{Name: n.Name, CNIVersion: n.CNIVersion, File: n.File}
	for _, p := range n.Plugins {
		i.Plugins = append(i.Plugins, append([]string{p.Type}, members(p.Raw)...)...)
	}
	return i
}

// members are the types inside a plugin of type patchbay or wrap.
func members(raw json.RawMessage) (types []string) {
	var conf struct {
		Type    string            `json:"type"`
		Plugin  json.RawMessage   `json:"plugin"`
		Plugins []json.RawMessage `json:"plugins"`
	}
	if json.Unmarshal(raw, &conf) != nil {
		return nil
	}
	list := conf.Plugins
	switch conf.Type {
	case oneProcessType:
	case wrapType:
		list = []json.RawMessage{conf.Plugin}
	default:
		return nil
	}
	for _, m := range list {
		var head struct {
			Type string `json:"type"`
		}
		if json.Unmarshal(m, &head) == nil {
			types = append(append(types, head.Type), members(m)...)
		}
	}
	return types
}

// Execute lists the networks. Broken files make it fail after the others are
// printed.
func (c *networkListCommand) Execute(args []string) error {
	c.app.json = c.JSON
	if err := noArgs(args); err != nil {
		return err
	}
	list, broken := networks(c.app.getenv, c.app.paths)
	infos := make([]networkInfo, 0, len(list))
	t := newTable("NAME", "VERSION", "PLUGINS", "FILE")
	for _, n := range list {
		i := n.info()
		infos = append(infos, i)
		file := i.File
		if n.builtin {
			file = "(built in)"
		}
		t.row(i.Name, i.CNIVersion, strings.Join(i.Plugins, ","), file)
	}
	if c.JSON {
		return errors.Join(c.app.printOnly(infos), broken)
	}
	return errors.Join(c.app.print(t.String()), broken)
}

type networkShowCommand struct {
	app  *app
	Args struct {
		Network networkName `positional-arg-name:"NETWORK" required:"1"`
	} `positional-args:"yes"`
}

// Execute prints the list as libcni would cache it: with what other files add.
func (c *networkShowCommand) Execute(args []string) error {
	if err := noArgs(args); err != nil {
		return err
	}
	n, err := c.app.network(string(c.Args.Network))
	if err != nil {
		return err
	}
	return c.app.print(strings.TrimRight(string(n.Bytes), "\n") + "\n")
}

type networkValidateCommand struct {
	app  *app
	JSON bool `long:"json" description:"print a JSON object, or the error as one"`
	Args struct {
		Network networkName `positional-arg-name:"NETWORK|FILE" required:"1"`
	} `positional-args:"yes"`
}

// Execute asks every plugin, and those inside a plugin of type patchbay, for
// its versions.
func (c *networkValidateCommand) Execute(args []string) error {
	c.app.json = c.JSON
	if err := noArgs(args); err != nil {
		return err
	}
	n, err := c.app.network(string(c.Args.Network))
	if err != nil {
		return err
	}
	rt := c.app.runtime(n)
	capabilities, err := rt.Validate(c.app.ctx, n.List)
	errs := []error{err}
	for _, p := range n.Plugins {
		for _, member := range members(p.Raw) {
			_, merr := rt.VersionInfo(c.app.ctx, member)
			errs = append(errs, merr)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("network %s: %w", n.Name, err)
	}
	if c.JSON {
		return c.app.printJSON(struct {
			networkInfo
			Capabilities []string `json:"capabilities"`
		}{n.info(), capabilities})
	}
	if spec.Compare(n.CNIVersion, spec.Current) < 0 {
		c.app.hint("cniVersion %s has no GC and no STATUS; %s has", n.CNIVersion, spec.Current)
	}
	return c.app.printf("%s: valid, cniVersion %s, capabilities: %s\n", n.Name, n.CNIVersion, strings.Join(capabilities, " "))
}
