// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cli/netfile"
	"github.com/patchbay-net/patchbay/internal/nl"
)

// networkCreateCommand writes the file of a new network.
type networkCreateCommand struct {
	app *app
	netfile.Request
	DryRun bool `long:"dry-run" description:"print the file and write nothing"`
	JSON   bool `long:"json" description:"print name, path and configuration as a JSON object"`
	Args   struct {
		Name string `positional-arg-name:"NAME" required:"1"`
	} `positional-args:"yes"`
}

// Execute creates the file and prints its path. With --dry-run it prints the file instead.
func (c *networkCreateCommand) Execute([]string) error {
	c.Name = c.Args.Name
	host, err := nl.Host(c.app.paths.Proc)
	if err != nil {
		return err
	}
	defer host.Close()
	m := &netfile.Maker{Dir: confDir(c.app.getenv), Host: host, Random: kernelRandom{}, Warn: c.app.warn, Judge: c.judge}
	made, err := m.Create(c.app.ctx, c.Request, c.DryRun)
	if err != nil {
		return c.explain(err)
	}
	err = c.app.printAll(c.text(made))
	if err != nil && !c.DryRun {
		err = c.app.undoFailed(err, func(ctx context.Context) error { return m.Rollback(ctx, made) })
	}
	return err
}

func (c *networkCreateCommand) text(made *netfile.Made) string {
	switch {
	case c.JSON:
		return indented(struct {
			Name   string          `json:"name"`
			File   string          `json:"file"`
			Config json.RawMessage `json:"config"`
		}{made.Name, made.File, made.Text})
	case c.DryRun:
		return string(made.Text)
	}
	return made.File + "\n"
}

// judge checks the new network as `network validate` does.
func (c *networkCreateCommand) judge(l *chain.List) error {
	_, err := c.app.vet(&network{List: l})
	return err
}

// explain turns an error about a flag's value into a usage error.
func (c *networkCreateCommand) explain(err error) error {
	var m *netfile.Mistake
	if errors.As(err, &m) {
		return usage(m.Hint, "%w", m)
	}
	return fmt.Errorf("create network %s: %w", c.Name, err)
}

// kernelRandom reads random bytes from the kernel. crypto/rand would add 60 KB of mathematics and
// ciphers, which this program needs nowhere else.
type kernelRandom struct{}

func (kernelRandom) Read(p []byte) (int, error) { return unix.Getrandom(p, 0) }
