// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package buildinfo reports the version and build of a program.
package buildinfo

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/patchbay-net/patchbay/spec"
)

// Info is what a program's version command prints.
type Info struct {
	Version  string   `json:"version"`
	Commit   string   `json:"commit,omitempty"`
	Modified bool     `json:"modified,omitempty"` // built from a tree with uncommitted changes
	Go       string   `json:"go"`
	Platform string   `json:"platform"`
	CNI      []string `json:"cniVersions"`
}

// Read reads what the linker embedded.
func Read() Info {
	b := Info{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, CNI: spec.Versions()}
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

// Text formats Info in two lines.
func (b Info) Text(program string) string {
	commit := ""
	if b.Commit != "" {
		commit = fmt.Sprintf(" (%.12s)", b.Commit)
	}
	return fmt.Sprintf("%s %s%s %s %s\nCNI %s\n", program, b.Version, commit, b.Go, b.Platform, strings.Join(b.CNI, " "))
}

// Asked reports whether the first argument asks for the version, in any usual form.
func Asked(args []string) bool {
	if len(args) == 0 {
		return false
	}
	switch args[0] {
	case "version", "--version", "-version", "-v", "-V":
		return true
	}
	return false
}
