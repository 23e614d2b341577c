// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/jessevdk/go-flags"

	"github.com/patchbay-net/patchbay/cli/doctor"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/terminal"
)

const completionLong = `Print a script that completes commands, flags, networks and plugins.

  bash   source <(patchbay completion bash)
  zsh    source <(patchbay completion zsh)
  fish   patchbay completion fish | source`

type completionCommand struct {
	app  *app
	Args struct {
		Shell string `positional-arg-name:"bash|zsh|fish" required:"1"`
	} `positional-args:"yes"`
}

// Execute prints the script.
func (c *completionCommand) Execute([]string) error {
	script, err := terminal.Completion("patchbay", c.Args.Shell)
	if err != nil {
		return usage("", "%w", err)
	}
	return c.app.print(script)
}

// beginning returns the elements of all that begin with match.
func beginning(match string, all []flags.Completion) []flags.Completion {
	return slices.DeleteFunc(all, func(c flags.Completion) bool { return !strings.HasPrefix(c.Item, match) })
}

// commandName is an argument that the shell completes to a command.
type commandName string

// Complete lists the commands that begin with match.
func (*commandName) Complete(match string) (out []flags.Completion) {
	for _, c := range new(app).commands() {
		out = append(out, flags.Completion{Item: c.name})
	}
	return beginning(match, out)
}

// nsName is an argument that the shell completes to a namespace below /run/netns.
type nsName string

// Complete lists the namespaces that begin with match.
func (*nsName) Complete(match string) (out []flags.Completion) {
	entries, _ := os.ReadDir(paths.Default().NetNS) // if the directory is missing, there are no named namespaces
	for _, e := range entries {
		out = append(out, flags.Completion{Item: e.Name()})
	}
	return beginning(match, out)
}

// checkID is the value of a flag that the shell completes to a check of doctor.
type checkID string

// Complete lists the checks that begin with match.
func (*checkID) Complete(match string) (out []flags.Completion) {
	for _, c := range doctor.Checks() {
		out = append(out, flags.Completion{Item: c.ID, Description: c.Title})
	}
	return beginning(match, out)
}

// runtimeName is the value of a flag that the shell completes to a file, or to a runtime that
// gc supports.
type runtimeName string

// Complete lists the runtimes and the files that begin with match.
func (*runtimeName) Complete(match string) []flags.Completion {
	out := []flags.Completion{{Item: "crictl"}, {Item: "podman"}, {Item: "docker"}}
	return append(beginning(match, out), new(flags.Filename).Complete(match)...)
}

// networkName is an argument that the shell completes to a network.
type networkName string

// Complete lists the networks that begin with match. The library calls it before any command
// runs, so it reads the environment of the process itself.
func (*networkName) Complete(match string) (out []flags.Completion) {
	list, _ := networks(os.Getenv, paths.Default()) // a broken file is not offered
	for _, n := range list {
		out = append(out, flags.Completion{Item: n.Name})
	}
	return beginning(match, out)
}

// containerName is an argument that the shell completes to a container: its name, pod, namespace or id.
type containerName string

// Complete lists the containers that begin with match.
func (*containerName) Complete(match string) (out []flags.Completion) {
	a := &app{getenv: os.Getenv, paths: paths.Default()}
	list, _ := a.attachments("") // attachments that cannot be read are not offered
	names := make(map[string]bool)
	for _, s := range list {
		names[cmp.Or(s.Name, s.Pod, a.named(s.NetNS), s.ContainerID)] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		out = append(out, flags.Completion{Item: name})
	}
	return beginning(match, out)
}
