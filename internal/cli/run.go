// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/netns"
)

const runLong = `Run CMD in a new network namespace attached to a network, and detach it when
CMD ends. Everything else CMD shares with the machine. The exit status is
CMD's; 125 when the network failed, 126 and 127 when CMD cannot be run or
does not exist.

A run that was killed is cleaned up by the next one, whatever it runs.

  patchbay run -p 8080:80 -- python3 -m http.server 80
  patchbay run --network mynet --ip 10.1.2.3 -- ip addr`

type runCommand struct {
	app     *app
	Network networkName `long:"network" value-name:"NAME" description:"network to attach to, or its file (the first configured one)"`
	IfName  string      `long:"ifname" short:"i" value-name:"NAME" env:"CNI_IFNAME" default:"eth0" description:"name of the interface in the namespace"`
	wish
	Args struct {
		Command []string `positional-arg-name:"CMD" required:"1"`
	} `positional-args:"yes"`
}

// Execute runs. What goes wrong before the command starts is status 125.
func (c *runCommand) Execute(rest []string) error {
	argv := append(c.Args.Command, rest...)
	n, err := c.app.network(string(c.Network))
	if err != nil {
		return runFailure(err)
	}
	capabilities, err := c.capabilities(c.app, n)
	if err != nil {
		return runFailure(err)
	}
	c.app.reap()
	s, err := c.app.newStay(n, ifName(c.IfName), capabilities)
	if err != nil {
		return runFailure(err)
	}
	err = c.app.stay(s, n, argv)
	// The command's status stands, also when what follows fails.
	if eerr := c.app.leave(s); eerr != nil {
		c.app.warn(fmt.Errorf("detach: %w", eerr))
	}
	return err
}

// runFailure gives run's own failures their status. A mistake on the command
// line keeps its own.
func runFailure(err error) error {
	f := &failure{err: err, hint: hintFor(err), code: exitRun}
	var known *failure
	if errors.As(err, &known) {
		f.hint = known.hint
		if known.code == exitUsage {
			f.code = exitUsage
		}
	}
	return f
}

// stay attaches the namespace and runs the command in it.
func (a *app) stay(s *stay, n *network, argv []string) error {
	if err := netns.Create(s.NetNS); err != nil {
		return runFailure(err)
	}
	result, err := a.runtime(n).Add(a.ctx, n.List, s.attachment())
	if err != nil {
		return runFailure(err)
	}
	return a.inside(s.NetNS, result.DNS, argv)
}

// leaveTime bounds the detaching at the end of a run.
const leaveTime = time.Minute

// leave detaches and forgets a stay, also when the context has ended. The
// namespace goes last: until then DEL may look into it.
func (a *app) leave(s *stay) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.ctx), leaveTime)
	defer cancel()
	list, err := chain.ParseList(s.Config)
	if err == nil {
		n := &network{List: list, builtin: s.Builtin}
		err = a.runtime(n).Del(ctx, list, s.attachment())
	}
	if err != nil {
		return errors.Join(err, s.unlock()) // the next run tries again
	}
	if err := netns.Delete(s.NetNS); err != nil {
		return errors.Join(err, s.unlock())
	}
	return s.forget()
}

// notRunnable turns the failure to start a command into env(1)'s statuses.
func notRunnable(argv []string, err error) error {
	code := exitNotRunnable
	if errors.Is(err, exec.ErrNotFound) || isMissing(err) {
		code = exitNotFound
	}
	return &failure{err: fmt.Errorf("run %s: %w", argv[0], err), code: code}
}

// newID names a run. The file of the run is made only where none is, so two
// runs of one name cannot be.
func newID() string { return fmt.Sprintf("run-%012x", rand.Uint64N(1<<48)) }
