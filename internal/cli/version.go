// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/patchbay-net/patchbay/spec"
)

const versionLong = `Print the version, the commit it was built from and the versions of the CNI
specification it speaks.`

type versionCommand struct {
	app  *app
	JSON bool `long:"json" description:"print a JSON object"`
}

// buildInfo is what version prints.
type buildInfo struct {
	Version  string   `json:"version"`
	Commit   string   `json:"commit,omitempty"`
	Modified bool     `json:"modified,omitempty"` // built from a tree with changes
	Go       string   `json:"go"`
	Platform string   `json:"platform"`
	CNI      []string `json:"cniVersions"`
}

// Execute prints the build information.
func (c *versionCommand) Execute(args []string) error {
	c.app.json = c.JSON
	if err := noArgs(args); err != nil {
		return err
	}
	b := build()
	if c.JSON {
		return c.app.printJSON(b)
	}
	commit := ""
	if b.Commit != "" {
		commit = fmt.Sprintf(" (%.12s)", b.Commit)
	}
	return c.app.printf("patchbay %s%s %s %s\nCNI %s\n", b.Version, commit, b.Go, b.Platform, strings.Join(b.CNI, " "))
}

// build reads what the linker noted.
func build() buildInfo {
	b := buildInfo{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, CNI: spec.Versions()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

// noArgs refuses what a command does not take.
func noArgs(args []string) error {
	if len(args) > 0 {
		return usage("", "unexpected argument %q", args[0])
	}
	return nil
}
