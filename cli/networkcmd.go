// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/patchbay-net/patchbay/cli/doctor"
	"github.com/patchbay-net/patchbay/spec"
)

const networkLong = `Networks are the .conflist, .conf and .json files in $NETCONFPATH
(/etc/cni/net.d). If there are none, a built-in network is used.

  patchbay network create pods          a bridge in a free subnet
  patchbay network create --ipv6 --subnet 10.70.0.0/16 pods
  patchbay network create -d macvlan --parent eth0 lan`

// networkCommand holds the subcommands.
type networkCommand struct {
	Create   networkCreateCommand   `command:"create" description:"write the file of a new network"`
	Remove   networkRemoveCommand   `command:"rm" description:"remove a network and what it left on the host"`
	List     networkListCommand     `command:"ls" description:"list the networks, the preferred one first"`
	Inspect  networkInspectCommand  `command:"inspect" description:"print what is known about networks, as a JSON array"`
	Show     networkShowCommand     `command:"show" description:"print the configuration of a network"`
	Validate networkValidateCommand `command:"validate" description:"check a network and that its plugins support its version"`
}

func newNetworkCommand(a *app) *networkCommand {
	return &networkCommand{
		Create:   networkCreateCommand{app: a},
		Remove:   networkRemoveCommand{app: a},
		List:     networkListCommand{app: a},
		Inspect:  networkInspectCommand{app: a},
		Show:     networkShowCommand{app: a},
		Validate: networkValidateCommand{app: a},
	}
}

type networkShowCommand struct {
	app  *app
	JSON bool `long:"json" description:"the same: the output is always JSON"`
	Args struct {
		Network networkName `positional-arg-name:"NETWORK" required:"1"`
	} `positional-args:"yes"`
}

// Execute prints the configuration as libcni caches it, with the plugins that are loaded from
// other files.
func (c *networkShowCommand) Execute([]string) error {
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

// Execute calls VERSION of every plugin, also of nested ones, and lets each plugin decode its
// configuration.
func (c *networkValidateCommand) Execute([]string) error {
	n, err := c.app.network(string(c.Args.Network))
	if err != nil {
		return err
	}
	warnings, err := c.app.vet(n)
	if err != nil {
		return err
	}
	capabilities, err := c.app.runtime(n).Validate(c.app.ctx, n.List)
	if err != nil {
		return fmt.Errorf("network %s: %w", n.Name, err)
	}
	if c.JSON {
		return c.app.printJSON(struct {
			networkInfo
			Capabilities []string `json:"capabilities"`
			Warnings     []string `json:"warnings,omitempty"`
		}{n.info(), capabilities, warnings})
	}
	if spec.Compare(n.CNIVersion, spec.Current) < 0 {
		c.app.hint("cniVersion %s has no GC and no STATUS; %s has", n.CNIVersion, spec.Current)
	}
	return c.app.printf("%s: valid, cniVersion %s, capabilities: %s\n", n.Name, n.CNIVersion, strings.Join(capabilities, " "))
}

// vet checks the configuration of a network. It prints warnings to standard error and also
// returns them. Its error lists all problems.
func (a *app) vet(n *network) (warnings []string, err error) {
	s := a.session()
	defer s.Close()
	var errs []error
	for _, f := range doctor.Validate(a.ctx, a.runtime(n), s, n.List) {
		if f.Level == doctor.Problem {
			errs = append(errs, f)
			continue
		}
		a.warn(f)
		warnings = append(warnings, f.Error())
	}
	if err := errors.Join(errs...); err != nil {
		return warnings, fmt.Errorf("network %s: %w", n.Name, err)
	}
	return warnings, nil
}

// ready checks the configuration, and then calls STATUS.
func (a *app) ready(ctx context.Context, n *network) error {
	if _, err := a.vet(n); err != nil {
		return err
	}
	s := a.session()
	defer s.Close()
	return doctor.Status(ctx, a.runtime(n), s, n.List)
}
