// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

const installLong = `Put this program into DIR (such as /opt/cni/bin) under the name of every
plugin, safely while containers start: the program is copied once, made
durable, and each name is replaced by a rename of a hard link, so a runtime
finds either the old program or the new one, whole. Processes of the old
program go on.

Programs of others under these names are only replaced with --backup or
--force:

  patchbay install --backup /opt/cni/bin.before /opt/cni/bin

To go back, move the files of the backup directory over those in DIR.`

type installCommand struct {
	app    *app
	Backup string   `long:"backup" value-name:"DIR" description:"keep the programs that are replaced in DIR"`
	Force  bool     `long:"force" description:"replace programs of others without keeping them"`
	Only   []string `long:"only" value-name:"NAME" description:"install this plugin only; may be repeated"`
	Source string   `long:"from" value-name:"FILE" hidden:"1" description:"the program to install (this one)"`
	JSON   bool     `long:"json" description:"print a JSON object"`
	Args   struct {
		Dir string `positional-arg-name:"DIR" required:"1"`
	} `positional-args:"yes"`
}

// installed is what install prints.
type installed struct {
	Dir      string   `json:"dir"`
	Build    string   `json:"build"`
	New      []string `json:"new,omitempty"`
	Replaced []string `json:"replaced,omitempty"`
	Kept     []string `json:"kept,omitempty"` // were this program already
}

// Execute refuses everything it must before the first change.
func (c *installCommand) Execute(args []string) error {
	c.app.json = c.JSON
	if err := noArgs(args); err != nil {
		return err
	}
	names, err := c.names()
	if err != nil {
		return err
	}
	in := &installer{dir: c.Args.Dir, backup: c.Backup}
	unlock, err := in.open(names)
	if err != nil {
		return err
	}
	defer unlock()
	if len(in.foreign) > 0 && c.Backup == "" && !c.Force {
		return hinted(fmt.Errorf("install into %s: programs of others are there: %s", in.dir, strings.Join(in.foreign, " ")),
			"--backup DIR keeps them in DIR, --force replaces them")
	}
	if c.Source == "" {
		c.Source = "/proc/self/exe"
	}
	done, err := in.install(c.Source, names)
	if err != nil {
		return err
	}
	if c.JSON {
		return c.app.printJSON(done)
	}
	return c.app.print(done.text())
}

// names are the plugins to install; --only must name known ones.
func (c *installCommand) names() (names []string, err error) {
	for _, p := range c.app.plugins {
		names = append(names, p.Name)
	}
	if len(c.Only) == 0 {
		return names, nil
	}
	for _, name := range c.Only {
		if c.app.plugin(name) == nil {
			err = errors.Join(err, usage("patchbay plugin list shows the names", "no built-in plugin %q", name))
		}
	}
	return c.Only, err
}

func (d installed) text() string {
	var b strings.Builder
	for _, part := range []struct {
		what  string
		names []string
	}{{"new", d.New}, {"replaced", d.Replaced}, {"unchanged", d.Kept}} {
		if len(part.names) > 0 {
			fmt.Fprintf(&b, "%-9s  %s\n", part.what, strings.Join(part.names, " "))
		}
	}
	return fmt.Sprintf("build %s in %s\n%s", d.Build, d.Dir, b.String())
}

// sameFile says whether two paths are one inode; missing files are not.
func sameFile(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Lstat(b)
	return err == nil && os.SameFile(x, y)
}
