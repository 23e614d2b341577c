// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/conformance"
	"github.com/patchbay-net/patchbay/conformance/report"
	"github.com/patchbay-net/patchbay/conformance/runtimes"
)

const runtimeLong = `Test how a container runtime calls plugins. CMD is a program, or a script of yours, that
does one operation with the runtime. It is run with one more argument:

  add | del | check   attach, detach or check the container
  gc | status         remove what is stale, or ask whether the network can be used

These variables say the rest: NETCONFPATH, CNI_PATH, CNI_IFNAME, CNI_ARGS and CAP_ARGS, as
for cnitool; NETWORK, NETNS, CONTAINERID, CACHE_DIR and, for gc, VALID_ATTACHMENTS. add prints the
result. The exit status 77 means that the runtime does not have this operation.

The plugins of the network are recorders. They note each call, and misbehave on order.`

// runtimeCommand tests a container runtime.
type runtimeCommand struct {
	app *app
	outcome
	Without []string      `long:"without" choice:"args" choice:"capabilities" choice:"netns" choice:"ifname" description:"CMD cannot pass these on (may be repeated)"`
	Version string        `long:"max-version" choice:"1.0.0" choice:"1.1.0" default:"1.1.0" description:"newest version of CNI that the runtime supports"`
	Timeout time.Duration `long:"timeout" value-name:"DURATION" description:"how long the runtime waits for a plugin, such as 30s; without it, no rule judges this"`
	Args    struct {
		Command []string `positional-arg-name:"CMD" required:"1"`
	} `positional-args:"yes"`
}

// Execute plays all scenarios with the runtime.
func (c *runtimeCommand) Execute([]string) error {
	names := []string{}
	for _, r := range runtimes.Rules() {
		names = append(names, r.Name)
	}
	only, err := c.only(names)
	if err != nil {
		return err
	}
	o := runtimes.Options{Command: slices.Clone(c.Args.Command), Without: c.Without, Version: c.Version, Timeout: c.Timeout, Only: only}
	if o.Command[0], err = runtimes.Find(c.Args.Command[0]); err != nil {
		return usage("", "%s is no program: %w", c.Args.Command[0], err)
	}
	needed, err := neededDirs(o.Command[0])
	if err != nil {
		return err
	}
	name := filepath.Base(o.Command[0])
	p := report.Plugin{Name: name, File: strings.Join(o.Command, " "), Subject: conformance.Subject{Type: name, Kind: "runtime"}}
	text, begun := c.text(c.app), time.Now()
	text.Begin(p)
	out, err := c.app.do(job{Runtime: &o, Subject: p.Subject, Path: needed})
	if err != nil {
		return err
	}
	p.Findings = out.Findings
	for _, o := range p.Outcomes {
		text.Outcome(o)
	}
	p.Milliseconds = time.Since(begun).Milliseconds()
	text.End([]report.Plugin{p}, nil)
	return c.finish(c.app, []report.Plugin{p})
}

// neededDirs are the directories that stay visible also below /run and /var/lib.
func neededDirs(command string) ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	here, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("find the working directory: %w", err)
	}
	return []string{filepath.Dir(self), filepath.Dir(command), here}, nil
}
