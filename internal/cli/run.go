// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"time"

	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

const runLong = `Run CMD in a new network namespace attached to a network, and detach it when
CMD ends. Everything else CMD shares with the machine. The exit status is
CMD's; 125 when the network failed, 126 and 127 when CMD cannot be run or
does not exist.

With several networks the interfaces are eth0, eth1 and so on, or as --ifname
says, in the order of the flags; --publish, --ip, --mac, CAP_ARGS and the name
servers are the first network's.

A run that was killed is cleaned up by the next one, whatever it runs.

  patchbay run -p 8080:80 -- python3 -m http.server 80
  patchbay run --network mynet --ip 10.1.2.3 -- ip addr
  patchbay run --network front --network storage -- ip addr`

type runCommand struct {
	app     *app
	Network []networkName `long:"network" value-name:"NAME" description:"network to attach to, or its file (the first configured one); may be repeated"`
	IfName  []string      `long:"ifname" short:"i" value-name:"NAME" description:"name of the interface in the namespace (CNI_IFNAME, eth0); may be repeated"`
	wish
	Args struct {
		Command []string `positional-arg-name:"CMD" required:"1"`
	} `positional-args:"yes"`
}

// Execute runs. What goes wrong before the command starts is status 125.
func (c *runCommand) Execute(rest []string) error {
	argv := append(c.Args.Command, rest...)
	networks, err := c.networks()
	if err != nil {
		return runFailure(err)
	}
	c.app.reap()
	s, err := c.app.newStay(networks)
	if err != nil {
		return runFailure(err)
	}
	err = c.app.stay(s, argv)
	// The command's status stands, also when what follows fails.
	if eerr := c.app.leave(s); eerr != nil {
		c.app.warn(fmt.Errorf("detach: %w", eerr))
	}
	return err
}

// networks reads every network before anything is made.
func (c *runCommand) networks() (list []joined, err error) {
	names := c.Network
	if len(names) == 0 {
		names = []networkName{""}
	}
	if len(c.IfName) > len(names) {
		return nil, usage("", "%d names of interfaces for %d networks", len(c.IfName), len(names))
	}
	for i, name := range names {
		n, err := c.app.network(string(name))
		if err != nil {
			return nil, err
		}
		j := joined{IfName: c.ifName(i), Builtin: n.builtin, Config: n.Bytes}
		if i == 0 {
			if j.Capabilities, err = c.capabilities(c.app, n); err != nil {
				return nil, err
			}
		}
		list = append(list, j)
	}
	return list, nil
}

// ifName is the interface in the nth network.
func (c *runCommand) ifName(n int) string {
	switch {
	case n < len(c.IfName):
		return c.IfName[n]
	case n == 0:
		return ifName(c.app.getenv("CNI_IFNAME"))
	}
	return fmt.Sprintf("eth%d", n)
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
func (a *app) stay(s *stay, argv []string) error {
	if err := netns.Create(s.NetNS); err != nil {
		return runFailure(err)
	}
	var dns spec.DNS
	for i, j := range s.all() {
		result, err := a.join(s, j)
		if err != nil {
			return runFailure(err)
		}
		if i == 0 {
			dns = result.DNS
		}
	}
	return a.inside(s.NetNS, dns, argv)
}

func (a *app) join(s *stay, j joined) (*spec.Result, error) {
	n, err := j.network()
	if err != nil {
		return nil, err
	}
	return a.runtime(n).Add(a.ctx, n.List, s.attachment(j))
}

// leaveTime bounds the detaching at the end of a run.
const leaveTime = time.Minute

// leave detaches and forgets a stay, also when the context has ended. The
// namespace goes last: until then DEL may look into it.
func (a *app) leave(s *stay) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.ctx), leaveTime)
	defer cancel()
	var errs []error
	for _, j := range slices.Backward(s.all()) {
		n, err := j.network()
		if err == nil {
			err = a.runtime(n).Del(ctx, n.List, s.attachment(j))
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
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
