// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/spec"
)

const gcLong = `Without NETWORK, look at the whole node: compare records, cached results of
every runtime, address files, links and firewall rules (also those of the
reference plugins) with the namespaces that exist, and show what is dead.
--apply removes it. An attachment is dead when its namespace is gone and, with
--from, the runtime does not list its container. What is not certain stays
and is shown with the reason.

  patchbay gc                     what would go
  patchbay gc --apply --from podman

With NETWORK, the GC of the specification: remove what is left of the
attachments of NETWORK whose containers are gone. Without a flag, the
attachments whose namespace still exists are kept. --valid names those to keep,
whether their namespace exists or not; everything else goes. --all keeps none:
it detaches every container of the network, as cnitool gc does.`

type gcCommand struct {
	app *app
	nodeFlags
	Valid  []string `long:"valid" value-name:"ID[/IFNAME]" description:"keep this attachment and remove all others; may be repeated"`
	All    bool     `long:"all" description:"keep no attachment"`
	DryRun bool     `long:"dry-run" short:"n" description:"only print what would be removed"`
	IfName string   `long:"ifname" short:"i" value-name:"NAME" env:"CNI_IFNAME" default:"eth0" description:"interface of a --valid without one"`
	JSON   bool     `long:"json" description:"print a JSON array, or the error as an object"`
	Args   struct {
		Network networkName `positional-arg-name:"NETWORK"`
	} `positional-args:"yes"`
}

// Execute collects and prints the known attachments that went.
func (c *gcCommand) Execute(args []string) error {
	c.app.json = c.JSON
	if err := noArgs(args); err != nil {
		return err
	}
	if c.Args.Network == "" {
		return c.node()
	}
	if c.Apply || c.From != "" {
		return usage("patchbay gc without NETWORK takes them", "--apply and --from are for the whole node")
	}
	if c.All && len(c.Valid) > 0 {
		return usage("", "--all and --valid exclude each other")
	}
	n, err := c.app.network(string(c.Args.Network))
	if err != nil {
		return err
	}
	known, err := c.app.standing(n.Name)
	c.app.warn(err)
	keep, err := c.keep(known)
	if err != nil {
		return err
	}
	gone := slices.DeleteFunc(known, func(s *standing) bool { return slices.Contains(keep, s.key()) })
	if !c.DryRun {
		if err := c.app.runtime(n).GC(c.app.ctx, chain.Keep{List: n.List, Valid: keep}); err != nil {
			return err
		}
	}
	return c.print(gone)
}

// keep decides what stays.
func (c *gcCommand) keep(known []*standing) (keep []spec.Attachment, err error) {
	if c.All {
		return nil, nil
	}
	for _, v := range c.Valid {
		id, name, ok := strings.Cut(v, "/")
		if !ok {
			name = ifName(c.IfName)
		}
		if err := spec.ValidateContainerID(id); err != nil {
			return nil, usage("", "--valid %s: %v", v, err)
		}
		if err := spec.ValidateIfName(name); err != nil {
			return nil, usage("", "--valid %s: %v", v, err)
		}
		keep = append(keep, spec.Attachment{ContainerID: id, IfName: name})
	}
	if len(c.Valid) > 0 {
		return keep, nil
	}
	for _, s := range known {
		if s.Alive {
			keep = append(keep, s.key())
		}
	}
	return keep, nil
}

func (c *gcCommand) print(gone []*standing) error {
	if c.JSON {
		return c.app.printJSON(gone)
	}
	for _, s := range gone {
		if err := c.app.print(fmt.Sprintf("%s %s/%s\n", s.Network, s.ContainerID, s.IfName)); err != nil {
			return err
		}
	}
	return nil
}

const statusLong = `Ask every plugin of NETWORK whether an ADD would work now. The exit status
is 0 when it would. A second argument is accepted, as by cnitool, and not
used.`

type statusCommand struct {
	app  *app
	JSON bool `long:"json" description:"print the error as the CNI error object, too"`
	Args struct {
		Network networkName `positional-arg-name:"NETWORK" required:"1"`
		Ignored []string    `positional-arg-name:"NETNS"`
	} `positional-args:"yes"`
}

// Execute asks.
func (c *statusCommand) Execute([]string) error {
	c.app.json = c.JSON
	n, err := c.app.network(string(c.Args.Network))
	if err != nil {
		return err
	}
	return c.app.runtime(n).Status(c.app.ctx, n.List)
}
