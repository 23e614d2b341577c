// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/patchbay-net/patchbay/cli/netmap"
	"github.com/patchbay-net/patchbay/internal/durable"
)

const mapLong = `Draw the networks of this node as one HTML page for a browser: networks,
bridges, attachments, addresses, published ports, network policies, and the
other hosts. What is broken is red, with the reason and the command that mends
it, as doctor, check and ps report it. The page needs no other file and no
network. It has a search, and works with the keyboard and a screen reader.

It shows who runs here and at which address, so -o makes a file that only its
owner can read. Nothing else is changed.

  patchbay map -o map.html
  patchbay map --svg -o map.svg`

type mapCommand struct {
	app    *app
	Output string `long:"output" short:"o" value-name:"FILE" description:"write to FILE, with mode 0600, instead of standard output"`
	SVG    bool   `long:"svg" description:"write a drawing in SVG"`
	JSON   bool   `long:"json" description:"write a JSON object"`
}

// Execute writes the map. Findings do not make it fail: doctor and check have exit statuses for them.
func (c *mapCommand) Execute([]string) error {
	if err := c.usable(); err != nil {
		return err
	}
	m, err := c.app.netmap()
	if err != nil {
		return err
	}
	text := c.drawn(m)
	if c.Output == "" {
		return c.app.print(text)
	}
	if err := durable.Write(c.Output, []byte(text)); err != nil {
		return fmt.Errorf("write the map: %w", err)
	}
	return nil
}

func (c *mapCommand) drawn(m *netmap.Map) string {
	switch {
	case c.JSON:
		c.app.json = false // standard output has its document
		return indented(m)
	case c.SVG:
		return netmap.SVG(m)
	}
	return netmap.HTML(m)
}

// usable refuses what cannot work, before anything is read.
func (c *mapCommand) usable() error {
	const hint = "patchbay map -o map.html"
	if c.SVG && c.JSON {
		return usage(hint, "--svg and --json exclude each other")
	}
	if c.Output == "" && !c.JSON && terminalOf(c.app.stdout) {
		return usage(hint, "the map is for a browser, and standard output is a terminal")
	}
	if c.Output != "" {
		if err := replaceable(c.Output); err != nil {
			return usage(hint, "--output: %w", err)
		}
	}
	return needRoot("map") // others see neither namespaces nor firewall
}

// replaceable refuses a path at which something other than a file is: the file would replace it, such as /dev/null.
func replaceable(path string) error {
	fi, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !fi.Mode().IsRegular():
		return fmt.Errorf("%s exists and is no regular file", path)
	}
	return nil
}
