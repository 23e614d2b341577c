// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/patchbay-net/patchbay/daemons/hosts"
	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/daemons/hosts/store/etcd"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/paths"
)

// admin holds what the subcommands of `patchbayd hosts` share.
type admin struct {
	app   *app
	store *storeFlag
}

// patience is how long a subcommand waits for the store.
const patience = 15 * time.Second

// do connects to the store, calls fn and closes the connection.
func (a *admin) do(fn func(context.Context, hosts.Admin) error) error {
	ctx, cancel := context.WithTimeout(a.app.ctx, patience)
	defer cancel()
	url, err := a.store.url(paths.Default())
	if err != nil {
		return err
	}
	s, err := etcd.Open(ctx, url)
	if err != nil {
		return err
	}
	return errors.Join(fn(ctx, hosts.Admin{Store: s}), s.Close())
}

// one is the single positional argument of a command.
type one struct {
	Name string `positional-arg-name:"NAME" required:"1"`
}

// hostsCreateCommand is `patchbayd hosts create`.
type hostsCreateCommand struct {
	Subnet    []string `long:"subnet" value-name:"PREFIX" required:"1" description:"address range for all hosts together, at most one of each family"`
	Block     int      `long:"block" value-name:"BITS" description:"prefix length of one host's IPv4 addresses (default: 24)"`
	Block6    int      `long:"block6" value-name:"BITS" description:"prefix length of one host's IPv6 addresses (default: 64)"`
	Transport string   `long:"transport" choice:"auto" choice:"routes" choice:"vxlan" choice:"wireguard" default:"auto" description:"how packets get to other hosts: routes (all hosts must be on one link), vxlan, auto (routes to hosts on the same link), or wireguard (encrypted, and never sent otherwise)"`
	MTU       int      `long:"mtu" value-name:"BYTES" description:"MTU of containers (default: the uplink's MTU minus the tunnel's header)"`
	Isolate   bool     `long:"isolate" description:"containers of networks with this option cannot reach each other, on any host"`
	Plugins   string   `long:"plugins" value-name:"FILE" description:"the plugins after the bridge: a list, or a .conflist (default: firewall and portmap)"`
	Args      one      `positional-args:"yes"`

	admin admin
}

// Execute adds a network.
func (c *hostsCreateCommand) Execute(args []string) error {
	if err := noArgs(args); err != nil {
		return err
	}
	n := store.Network{Name: c.Args.Name, Transport: store.Transport(c.Transport), MTU: c.MTU, Isolate: c.Isolate}
	for _, text := range c.Subnet {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("read --subnet: %w", err)
		}
		n.Subnets = append(n.Subnets, p)
		if p.Addr().Is4() {
			n.BlockBits4 = blockBits(c.Block, p, 24)
		} else {
			n.BlockBits6 = blockBits(c.Block6, p, 64)
		}
	}
	if c.Plugins != "" {
		var err error
		if n.Plugins, err = readPlugins(c.Plugins); err != nil {
			return err
		}
	}
	return c.admin.do(func(ctx context.Context, a hosts.Admin) error { return a.Create(ctx, n) })
}

// blockBits returns the prefix length of one host's block. If given is not 0, blockBits returns
// given. Otherwise it returns usual or, in a small subnet, the prefix length of a sixteenth of the
// subnet.
func blockBits(given int, subnet netip.Prefix, usual int) int {
	if given != 0 {
		return given
	}
	return max(usual, subnet.Bits()+4)
}

// readPlugins reads a list of plugins from a file, or takes the list from a network's
// configuration.
func readPlugins(path string) (out []json.RawMessage, err error) {
	data, err := durable.ReadGiven(path)
	if err != nil {
		return nil, err
	}
	if json.Unmarshal(data, &out) == nil && out != nil {
		return out, nil
	}
	var list struct{ Plugins []json.RawMessage }
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("read plugins of %s: %w", path, err)
	}
	return append([]json.RawMessage{}, list.Plugins...), nil
}

// hostsRemoveCommand is `patchbayd hosts rm`.
type hostsRemoveCommand struct {
	Force bool `long:"force" description:"even if containers are on it"`
	Args  one  `positional-args:"yes"`

	admin admin
}

// Execute removes a network.
func (c *hostsRemoveCommand) Execute(args []string) error {
	if err := noArgs(args); err != nil {
		return err
	}
	return c.admin.do(func(ctx context.Context, a hosts.Admin) error { return a.Remove(ctx, c.Args.Name, c.Force) })
}

// hostsForgetCommand is `patchbayd hosts forget`.
type hostsForgetCommand struct {
	Args one `positional-args:"yes"`

	admin admin
}

// Execute forgets a host, and prints the blocks that other hosts may get now.
func (c *hostsForgetCommand) Execute(args []string) error {
	if err := noArgs(args); err != nil {
		return err
	}
	return c.admin.do(func(ctx context.Context, a hosts.Admin) error {
		gone, err := a.Forget(ctx, c.Args.Name)
		for _, b := range gone {
			printLine("network %s: block %s is free: what still runs on %s may have addresses that others get now", b.Network, b.Prefix, c.Args.Name)
		}
		return err
	})
}

// hostsListCommand is `patchbayd hosts ls`.
type hostsListCommand struct {
	JSON bool `long:"json" description:"print one JSON object"`

	admin admin
}

// Execute prints the content of the store.
func (c *hostsListCommand) Execute(args []string) error {
	if err := noArgs(args); err != nil {
		return err
	}
	return c.admin.do(func(ctx context.Context, a hosts.Admin) error {
		l, err := a.List(ctx, hosts.StateDir(paths.Default()))
		if err != nil {
			return err
		}
		return printListing(l, c.JSON)
	})
}

// printListing prints what `ls` of an agent says, for people or as JSON.
func printListing(l interface{ Print(to io.Writer) error }, asJSON bool) error {
	if !asJSON {
		return l.Print(os.Stdout)
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "  ")
	return out.Encode(l)
}

// hostsLeaveCommand is `patchbayd hosts leave`.
type hostsLeaveCommand struct {
	Force bool `long:"force" description:"leave even if containers or Docker networks have addresses of this host's blocks, which other hosts may then assign too"`

	admin admin
	hosts *hostsCommand
}

// Execute removes this host from the store, removes its networking, and prints each step.
func (c *hostsLeaveCommand) Execute(args []string) error {
	if err := noArgs(args); err != nil {
		return err
	}
	where := paths.Default()
	dir := hosts.StateDir(where)
	unlock, err := lockAgent(context.Background(), dir)
	if err != nil {
		return fmt.Errorf("%w: stop the agent first: systemctl disable --now patchbay-hosts.service", err)
	}
	defer unlock()
	if err := c.leave(where); err != nil {
		return err
	}
	_ = os.Remove(filepath.Join(dir, "lock"))
	_ = os.Remove(dir) // fails if the directory has a store in it
	return nil
}

func (c *hostsLeaveCommand) leave(where paths.Paths) error {
	dir, err := c.hosts.confDir()
	if err != nil {
		return err
	}
	fabric, err := mesh.Open(mesh.Options{Paths: where})
	if err != nil {
		return err
	}
	defer fabric.Close()
	return c.admin.do(func(ctx context.Context, a hosts.Admin) error {
		return hosts.Leaving{
			Store: a.Store, Paths: where, ConfDir: dir, Force: c.Force,
			Clear: func(ctx context.Context) error { return fabric.Clear(ctx, mesh.Self{}) },
			Log:   printLine,
		}.Do(ctx)
	})
}

// printLine prints one step of a command.
func printLine(format string, args ...any) {
	fmt.Fprintf(os.Stdout, format+"\n", args...) //nolint:errcheck // there is nowhere to report it
}
