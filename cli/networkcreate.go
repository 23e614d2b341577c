// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cli/netfile"
	"github.com/patchbay-net/patchbay/internal/nl"
)

// networkCreateCommand writes the file of a new network.
type networkCreateCommand struct {
	app       *app
	Driver    string   `long:"driver" short:"d" value-name:"NAME" default:"bridge" description:"bridge, ptp, macvlan or ipvlan"`
	Subnet    []string `long:"subnet" value-name:"SUBNET" description:"subnet of the containers (a free one); may be repeated, for IPv6 too"`
	Gateway   []string `long:"gateway" value-name:"ADDRESS" description:"address of the gateway (the first one of the subnet); may be repeated"`
	IPRange   []string `long:"ip-range" value-name:"PREFIX|FIRST-LAST" description:"give containers addresses from this part of the subnet; may be repeated"`
	IPv6      bool     `long:"ipv6" description:"a subnet of each family; the one of IPv6 is a unique local /64"`
	Internal  bool     `long:"internal" description:"no way out: no gateway, no masquerade, no published ports"`
	Parent    string   `long:"parent" value-name:"INTERFACE" description:"interface of the host that a macvlan or ipvlan is on; -o parent= is the same"`
	Interface string   `long:"interface-name" value-name:"NAME" description:"name of the bridge (a free one: pb1, pb2 ...)"`
	DNS       []string `long:"dns" value-name:"ADDRESS" description:"name server for the containers; may be repeated"`
	Option    []string `long:"option" short:"o" value-name:"KEY=VALUE" description:"mtu, vlan, isolate (bridge); mtu (ptp); parent, mode, mtu (macvlan, ipvlan); may be repeated"`
	Opt       []string `long:"opt" hidden:"yes"` // podman's name of the flag
	One       bool     `long:"one-process" description:"all plugins in one of type patchbay: faster, for our plugins only"`
	DryRun    bool     `long:"dry-run" description:"print the file and write nothing"`
	JSON      bool     `long:"json" description:"print name, path and configuration as a JSON object"`
	Args      struct {
		Name string `positional-arg-name:"NAME" required:"1"`
	} `positional-args:"yes"`
}

// Execute prints the path of the file, or the file.
func (c *networkCreateCommand) Execute([]string) error {
	host, err := nl.Host(c.app.paths.Proc)
	if err != nil {
		return err
	}
	defer host.Close()
	m := &netfile.Maker{Dir: confDir(c.app.getenv), Host: host, Random: kernelRandom{}, Warn: c.app.warn, Judge: c.judge}
	made, err := m.Create(c.app.ctx, c.capabilityFlags(), c.DryRun)
	if err != nil {
		return c.explain(err)
	}
	err = c.app.printAll(c.text(made))
	if err != nil && !c.DryRun {
		err = c.app.undoFailed(err, func(ctx context.Context) error { return m.TakeBack(ctx, made) })
	}
	return err
}

func (c *networkCreateCommand) text(made *netfile.Made) string {
	switch {
	case c.JSON:
		return indented(struct {
			Name   string          `json:"name"`
			File   string          `json:"file"`
			Config json.RawMessage `json:"config"`
		}{made.Name, made.File, made.Text})
	case c.DryRun:
		return string(made.Text)
	}
	return made.File + "\n"
}

// judge applies network validate to the network.
func (c *networkCreateCommand) judge(l *chain.List) error {
	_, err := c.app.vet(&network{List: l})
	return err
}

func (c *networkCreateCommand) capabilityFlags() netfile.Wish {
	w := netfile.Wish{
		Name: c.Args.Name, Driver: c.Driver, Interface: c.Interface, Subnets: c.Subnet, Gateways: c.Gateway, Ranges: c.IPRange,
		IPv6: c.IPv6, Internal: c.Internal, DNS: c.DNS, Options: append(c.Option, c.Opt...), One: c.One,
	}
	if c.Parent != "" {
		w.Options = append(w.Options, "parent="+c.Parent)
	}
	return w
}

// explain turns a mistake in a flag into a usage error.
func (c *networkCreateCommand) explain(err error) error {
	var m *netfile.Mistake
	if errors.As(err, &m) {
		return usage(m.Hint, "%w", m)
	}
	return fmt.Errorf("create network %s: %w", c.Args.Name, err)
}

// kernelRandom reads the kernel's random bytes: crypto/rand would link mathematics and
// ciphers that this program needs nowhere else, 60 KB.
type kernelRandom struct{}

func (kernelRandom) Read(p []byte) (int, error) { return unix.Getrandom(p, 0) }
