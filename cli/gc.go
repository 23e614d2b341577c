// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
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

  patchbay gc                     what would be removed
  patchbay gc --apply --from podman

With NETWORK, the GC of the specification: remove what is left of the
attachments of NETWORK whose containers are gone. Without a flag, it removes
attachments that are dead by the same evidence, without a grace period; unsure
ones stay, and a warning gives the reason. --valid names those to keep, whether
their namespace exists or not; all others are removed. --all keeps none: it
detaches every container of the network, as cnitool gc does. An attachment made
while it runs stays.`

type gcCommand struct {
	app *app
	nodeFlags
	verbosity
	Valid  []string `long:"valid" value-name:"ID[/IFNAME]" description:"keep this attachment and remove all others; may be repeated"`
	All    bool     `long:"all" description:"keep no attachment"`
	DryRun bool     `long:"dry-run" short:"n" description:"only print what would be removed"`
	IfName string   `long:"ifname" short:"i" value-name:"NAME" env:"CNI_IFNAME" default:"eth0" description:"interface of a --valid without one"`
	JSON   bool     `long:"json" description:"print a JSON array, or the error as an object"`
	Args   struct {
		Network networkName `positional-arg-name:"NETWORK"`
	} `positional-args:"yes"`
}

// Execute collects and prints the known attachments that were removed.
func (c *gcCommand) Execute([]string) error {
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
	named, err := c.named()
	if err != nil {
		return err
	}
	j := &judgement{app: c.app, network: n.Name, explicit: c.explicit(), named: named}
	if c.DryRun {
		_, err = j.keep(c.app.ctx)
	} else {
		k := chain.Keep{List: n.List, Now: j.keep}
		if !j.explicit {
			k.Alive = func(a *chain.Cached) bool { return j.judged.Lives(a) }
		}
		err = c.app.runtime(n).GC(c.app.ctx, k)
	}
	if err != nil {
		return err
	}
	return c.print(j)
}

// explicit reports whether the flags list what stays, whatever is alive.
func (c *gcCommand) explicit() bool { return c.All || len(c.Valid) > 0 }

// named are the attachments of --valid.
func (c *gcCommand) named() (keep []spec.Attachment, err error) {
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
	return keep, nil
}

func (c *gcCommand) print(j *judgement) error {
	if c.JSON {
		return c.app.printJSON(append(append([]judgedOne{}, j.gone...), j.unsure...))
	}
	for _, s := range j.unsure {
		c.app.warn(fmt.Errorf("%s %s stays: %s", s.Network, s.name(), s.Why))
	}
	for _, s := range j.gone {
		if err := c.app.print(fmt.Sprintf("%s %s\n", s.Network, s.name())); err != nil {
			return err
		}
	}
	return nil
}

const statusLong = `Check with every plugin of NETWORK that an ADD would work now. The exit status
is 0 when it would. A second argument is accepted, as by cnitool, and
ignored.`

type statusCommand struct {
	app *app
	verbosity
	JSON bool `long:"json" description:"print the error as the CNI error object, too"`
	Args struct {
		Network networkName `positional-arg-name:"NETWORK" required:"1"`
		Ignored []string    `positional-arg-name:"NETNS"`
	} `positional-args:"yes"`
}

// Execute runs STATUS.
func (c *statusCommand) Execute([]string) error {
	n, err := c.app.network(string(c.Args.Network))
	if err != nil {
		return err
	}
	return c.app.ready(c.app.ctx, n)
}
