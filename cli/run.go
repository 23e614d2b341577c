// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

const runLong = `Run CMD in a new network namespace that is attached to a network, and detach
it when CMD ends. CMD shares everything else with the machine. The exit status
is CMD's, or 125 if the network failed, 126 if CMD cannot be executed, 127 if
CMD does not exist.

-i and -t are accepted for users of docker's -it: CMD has this terminal with or
without them. --ifname names the interface.

With several networks the interfaces are eth0, eth1 and so on, or have the names
of --ifname, in the order of the flags. --publish, --ip, --mac, CAP_ARGS and the
name servers apply to the first network.

The next run cleans up after a run that was killed.

  patchbay run -p 8080:80 -- python3 -m http.server 80
  patchbay run --network mynet --ip 10.1.2.3 -- ip addr
  patchbay run --network front --network storage -- ip addr`

type runCommand struct {
	app     *app
	Network []networkName `long:"network" value-name:"NAME" description:"network to attach to, or its file (the first configured one); may be repeated"`
	IfName  []string      `long:"ifname" value-name:"NAME" description:"name of the interface in the namespace (CNI_IFNAME, eth0); may be repeated"`
	Stdin   bool          `long:"interactive" short:"i" description:"accepted as in docker's -it: CMD always reads this standard input"`
	TTY     bool          `long:"tty" short:"t" description:"accepted as in docker's -it: CMD always has this terminal"`
	capabilityFlags
	Args struct {
		Command []string `positional-arg-name:"CMD..." required:"1"`
	} `positional-args:"yes"`
}

// Execute runs the command. If anything fails before the command starts, the status is 125.
func (c *runCommand) Execute(rest []string) error {
	argv := append(c.Args.Command, rest...)
	networks, err := c.networks()
	if err != nil {
		return runFailure(err)
	}
	if err := errors.Join(needRoot("run"), c.free(c.app)); err != nil {
		return runFailure(err)
	}
	c.app.warn(c.app.reap()) // this run must still start
	s, err := c.app.newRunState(networks)
	if err != nil {
		return runFailure(err)
	}
	err = c.app.attachAndRun(s, argv)
	var f *failure
	if c.Stdin && errors.As(err, &f) && f.code == exitNotFound {
		f.hint = "-i is --interactive, as docker's; --ifname NAME names the interface"
	}
	// The exit status is the command's, even if detaching fails too.
	if eerr := c.app.leave(s); eerr != nil {
		c.app.warn(fmt.Errorf("detach: %w", eerr))
	}
	return err
}

// networks loads every network's configuration before anything is created.
func (c *runCommand) networks() (list []joined, err error) {
	found, err := c.named()
	if err != nil {
		return nil, err
	}
	if len(c.IfName) > len(found) {
		return nil, usage("", "%d names of interfaces for %d networks", len(c.IfName), len(found))
	}
	for i, n := range found {
		if err := spec.ValidateIfName(c.ifName(i)); err != nil {
			return nil, usage("", "--ifname %s: %w", c.ifName(i), err)
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

// named returns the networks that --network names. If it names none, named returns the first
// configured network.
func (c *runCommand) named() (list []*network, err error) {
	if len(c.Network) == 0 {
		n, err := c.app.firstNetwork()
		return []*network{n}, err
	}
	for _, name := range c.Network {
		n, err := c.app.network(string(name))
		if err != nil {
			return nil, err
		}
		list = append(list, n)
	}
	return list, nil
}

// ifName returns the name of the interface in the nth network.
func (c *runCommand) ifName(n int) string {
	switch {
	case n < len(c.IfName):
		return c.IfName[n]
	case n == 0:
		return ifName(c.app.getenv("CNI_IFNAME"))
	}
	return fmt.Sprintf("eth%d", n)
}

// runFailure gives the status 125 to an error that kept the command from starting. A usage
// error keeps its own status.
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

// attachAndRun attaches the namespace and runs the command in it.
func (a *app) attachAndRun(s *runState, argv []string) error {
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

func (a *app) join(s *runState, j joined) (*spec.Result, error) {
	n, err := j.network()
	if err != nil {
		return nil, err
	}
	result, err := a.runtime(n).Add(a.ctx, n.List, s.attachment(j))
	return result, plainly(err, s.NetNS)
}

// leaveTime limits the time of all DELs at the end of a run.
const leaveTime = time.Minute

// leave detaches a run and removes its file, even if the context was cancelled. It removes the
// namespace last, because each DEL may work in it.
func (a *app) leave(s *runState) error {
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
		return errors.Join(err, s.unlock()) // the next run will clean up
	}
	if err := netns.Delete(s.NetNS); err != nil {
		return errors.Join(err, s.unlock())
	}
	return s.forget()
}

// notRunnable sets the exit status and the hint for a command that could not be started. The
// statuses are the same as env(1)'s.
func notRunnable(argv []string, err error) error {
	f := &failure{err: fmt.Errorf("run %s: %w", argv[0], err), code: exitNotRunnable}
	switch {
	case errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist):
		f.code, f.hint = exitNotFound, "CMD is looked for in $PATH, or is a path to a program"
	case errors.Is(err, fs.ErrPermission):
		f.err = fmt.Errorf("run %s: it is not executable", argv[0])
		f.hint = "chmod +x makes a file executable; " + shellQuoted("sh", argv[0]) + " runs a script"
	case errors.Is(err, unix.ENOEXEC):
		f.hint = "it is not a program for this machine; a script begins with a line such as #!/bin/sh"
	}
	return f
}

// runState lists everything that a run makes. It is a file below /run/patchbay/run, which the run
// keeps locked. So a file without a lock belongs to a killed run. The run writes the file before
// it makes anything. The file contains the configuration, because the network's own file may have
// changed when the cleanup runs.
type runState struct {
	ID    string `json:"id"`
	NetNS string `json:"netns"`
	joined
	More []joined `json:"more,omitempty"` // the other networks

	path string
	file *os.File // holds the lock
}

// joined is one network of a run.
type joined struct {
	IfName       string         `json:"ifname"`
	Builtin      bool           `json:"builtin,omitempty"` // the built-in network
	Config       []byte         `json:"config"`
	Capabilities map[string]any `json:"capabilities,omitempty"`
}

// all lists the networks in the order in which the run attaches them.
func (s *runState) all() []joined { return append([]joined{s.joined}, s.More...) }

func (a *app) runDir() string { return filepath.Join(a.paths.Run, "run") }

// newRunState writes the file of a new run and locks it.
func (a *app) newRunState(networks []joined) (*runState, error) {
	id := fmt.Sprintf("run-%012x", rand.Uint64N(1<<48)) // CreateLocked fails if another run has this id
	s := &runState{ID: id, NetNS: filepath.Join(a.paths.NetNS, "patchbay-"+id), joined: networks[0], More: networks[1:]}
	data, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode run: %w", err)
	}
	if err := durable.MakeDir(a.paths.Run, "run"); err != nil {
		return nil, fmt.Errorf("note run: %w", err)
	}
	s.path = filepath.Join(a.runDir(), id)
	fd, err := durable.CreateLocked(s.path, data)
	if err != nil {
		return nil, fmt.Errorf("note run: %w", err)
	}
	s.file = os.NewFile(uintptr(fd), s.path)
	return s, nil
}

func (s *runState) attachment(j joined) chain.Attachment {
	return chain.Attachment{ContainerID: s.ID, NetNS: s.NetNS, IfName: j.IfName, Capabilities: j.Capabilities}
}

// network returns the network with the configuration that the run attached, because the network's
// file may have changed.
func (j joined) network() (*network, error) {
	list, err := chain.ParseList(j.Config)
	return &network{List: list, builtin: j.Builtin}, err
}

// unlock releases the file without removing it. The next run then does the cleanup.
func (s *runState) unlock() error { return s.file.Close() }

// forget removes the file and then unlocks it. So only one process can clean up.
func (s *runState) forget() error {
	err := ignoreMissing(os.Remove(s.path))
	return errors.Join(err, s.file.Close())
}
