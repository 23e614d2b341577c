// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package cnmcli has the commands of patchbay-cnm and the list of the plugins in that program.
// The commands install the plugins, list and delete networks of Docker's drivers, and serve a
// part of Docker's API.
package cnmcli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/patchbay-net/patchbay/daemons/cnm/cnmipam"
	"github.com/patchbay-net/patchbay/daemons/cnm/cnmplugin"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/terminal"
	"github.com/patchbay-net/patchbay/plugin"
)

// Plugins returns the plugins in the program.
func Plugins() []*plugin.Plugin { return []*plugin.Plugin{&cnmplugin.Plugin, &cnmipam.Plugin} }

// Find returns the plugin of a type, or nil.
func Find(pluginType string) *plugin.Plugin {
	for _, p := range Plugins() {
		if p.Name == pluginType {
			return p
		}
	}
	return nil
}

const usage = `patchbay-cnm is two CNI plugins, which are called by their names: cnm attaches
containers by a Docker network driver, cnm-ipam gives addresses of a Docker
IPAM driver.

  patchbay-cnm install DIR              put the plugins into DIR, such as /opt/cni/bin
  patchbay-cnm networks                 the networks that drivers were asked for
  patchbay-cnm rm [--force] NETWORK     delete a network without attachments, at its
                                        drivers; with --force also when they cannot be reached
  patchbay-cnm docker-api [SOCKET]      stand in for Docker's API, for drivers that
                                        read it (default /run/patchbay/docker.sock)
  patchbay-cnm version                  which build it is
  patchbay-cnm man                      this page, in roff
`

// manPage is the page around the usage, which has no character that roff knows at the begin of a line.
const manPage = `.TH patchbay-cnm 1 "" "" "Patchbay"
.SH NAME
patchbay-cnm \- CNI plugins that use Docker's network and IPAM drivers
.SH DESCRIPTION
.nf
` + usage + `.fi
`

// errUsage is the error for a mistake on the command line.
var errUsage = errors.New("see patchbay-cnm help")

// app holds the inputs and outputs of the process.
type app struct {
	stdout io.Writer
	stderr io.Writer
	paths  paths.Paths
}

// Main runs a command and returns the exit status: 0 if it succeeded, 1 if it failed, 2 for a
// mistake on the command line. SIGTERM ends the command docker-api cleanly.
func Main(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	a := &app{stdout, stderr, paths.Default()}
	err := a.run(ctx, args)
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, "patchbay-cnm: error:", err) //nolint:errcheck // there is no other place for the error
	if errors.Is(err, errUsage) {
		return 2
	}
	return 1
}

func (a *app) run(ctx context.Context, args []string) error {
	command, rest := "help", args
	if len(args) > 0 {
		command, rest = args[0], args[1:]
	}
	switch {
	case terminal.AsksVersion(args) && len(rest) == 0:
		_, err := io.WriteString(a.stdout, terminal.ReadBuild().Text("patchbay-cnm"))
		return err
	case command == "help" || command == "--help" || command == "-h":
		_, err := io.WriteString(a.stdout, usage)
		return err
	case command == "man" && len(rest) == 0:
		_, err := io.WriteString(a.stdout, manPage)
		return err
	case command == "install" && len(rest) == 1:
		return a.install(rest[0])
	case command == "networks" && len(rest) == 0:
		return a.networks()
	case command == "rm" && len(rest) == 2 && rest[0] == "--force":
		return a.rm(ctx, rest[1], true)
	case command == "rm" && len(rest) == 1:
		return a.rm(ctx, rest[0], false)
	case command == "docker-api" && len(rest) <= 1:
		return a.dockerAPI(ctx, rest)
	}
	return fmt.Errorf("unknown command %q: %w", strings.Join(args, " "), errUsage)
}

// say prints one line to standard output.
func (a *app) say(format string, args ...any) error {
	_, err := fmt.Fprintf(a.stdout, format+"\n", args...)
	return err
}

// install puts the program into a directory under the names of the plugins. Containers may start
// meanwhile, so each name always leads to the complete old program or to the complete new one.
func (a *app) install(dir string) error {
	program, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		return fmt.Errorf("install: %w", err)
	}
	for _, p := range Plugins() {
		to := filepath.Join(dir, p.Name)
		if err := durable.WriteSynced(to, program, 0o755); err != nil {
			return fmt.Errorf("install: %w", err)
		}
		if err := a.say("%s", to); err != nil {
			return err
		}
	}
	return nil
}
