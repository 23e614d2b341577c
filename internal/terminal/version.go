// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/patchbay-net/patchbay/spec"
)

// Build is what the version command of a program prints.
type Build struct {
	Version  string   `json:"version"`
	Commit   string   `json:"commit,omitempty"`
	Modified bool     `json:"modified,omitempty"` // built from a tree with uncommitted changes
	Go       string   `json:"go"`
	Platform string   `json:"platform"`
	CNI      []string `json:"cniVersions"`
}

// ReadBuild reads the build information that the linker embedded.
func ReadBuild() Build {
	b := Build{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, CNI: spec.Versions()}
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

// Text returns the build information in two lines.
func (b Build) Text(program string) string {
	commit := ""
	if b.Commit != "" {
		commit = fmt.Sprintf(" (%.12s)", b.Commit)
	}
	return fmt.Sprintf("%s %s%s %s %s\nCNI %s\n", program, b.Version, commit, b.Go, b.Platform, strings.Join(b.CNI, " "))
}

// AsksVersion reports whether the first argument asks for the version, in any of the usual
// forms.
func AsksVersion(args []string) bool {
	if len(args) == 0 {
		return false
	}
	switch args[0] {
	case "version", "--version", "-version", "-v", "-V":
		return true
	}
	return false
}
